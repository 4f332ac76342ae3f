"""`endx generate`: writes questions for a corpus's passages by a language model; run the same command to resume.

Answers are kept beside the output, in OUTPUT.journal, so that none is paid twice. The server's key is read from
OPENAI_API_KEY in the environment. Needs the extra `generate`.
"""

import argparse
import contextlib
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from endx_jax import json_files
from endx_jax.buckets import url_of
from endx_jax.data.chat import Chat
from endx_jax.data.generation import PROMPT, Journal, distinct, generate, key_of, pairs_of
from endx_jax.data.sets.documents import Document
from endx_jax.files import locked, replacing
from endx_jax.settings import check_range, require

if TYPE_CHECKING:
    from endx_jax.data.sets.records import RetrievalSet
    from endx_jax.ranking.mining import Ranked

    Rank = Callable[[RetrievalSet, int], Ranked]

KEY = "OPENAI_API_KEY"  # environment variable of the server's key
CHARACTERS = 4  # of a token of English, about
TOKENS = 20  # of a question, about
NAMED = 20  # skipped passages whose ids are printed


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)
    output, count = pathlib.Path(arguments.output), arguments.questions
    for name, least in {"questions": 1, "concurrency": 1, "retries": 0, "filter_top": 1}.items():
        check_range(f"--{name.replace('_', '-')}", getattr(arguments, name), least, 1000)
    require(arguments.timeout > 0, f"--timeout={arguments.timeout}: give seconds above 0")
    require(arguments.limit is None or arguments.limit >= 0, f"--limit={arguments.limit}: give a number of passages")
    template = _template(arguments.prompt).replace("{count}", str(count))
    more = json_files.parse(arguments.fields, "--fields", dict)
    fields = {"model": arguments.model, "max_tokens": 200 + 100 * count} | more
    key = os.environ.get(KEY, "").strip()
    chat = Chat(arguments.endpoint, fields, key, arguments.timeout, arguments.retries)
    journal_file = output.with_name(f"{output.name}.journal")
    require(
        not url_of(arguments.output),
        f"{arguments.output} is in a bucket, which a kill would leave without the journal: name a local file",
    )
    require(output.parent.is_dir(), f"{output.parent} is no folder: make it first")
    require(journal_file.exists() or not output.exists(), f"{output} exists and has no journal: name another --output")

    from endx_jax.data.formats import read_corpus
    from endx_jax.parallel.console import say

    documents = [*distinct(read_corpus(arguments.corpus, text_column=arguments.text_column, say=say))]
    asked = documents if arguments.limit is None else documents[: arguments.limit]
    if not asked:
        say(_estimate(arguments, template, documents, 0))
        return
    rank = _ranker(arguments.filter_with) if arguments.filter_with else None  # before anything is paid
    about = {"fields": fields, "prompt": template, "questions": count}
    with locked(output.with_name(f".{output.name}.lock")), contextlib.closing(Journal(journal_file, about)) as journal:
        if torn := journal.torn:
            say(f"{journal_file}: {len(torn):,} broken lines are skipped: {', '.join(map(str, torn[:NAMED]))}")
        left = [document for document in asked if journal.tries_left(key_of(document.text))]
        say(_estimate(arguments, template, left, len(asked) - len(left)))
        unanswered = _ask(arguments, chat, journal, template, left)
        pairs, repeated = pairs_of(asked, journal)
        chosen = _best(pairs, documents, rank, arguments.filter_top) if rank and pairs else pairs
        if chosen:
            rows = ({"question": question, "answer": passage.text, "id": passage.name} for question, passage in chosen)
            with replacing(output) as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    dropped = f"{repeated:,} of several passages and {len(pairs) - len(chosen):,} by --filter-with are left out"
    say(f"{output if chosen else 'the result'} holds {len(chosen):,} pairs of {len(asked):,} passages; {dropped}")
    say(f"tokens of all answers in {journal_file}: {_tokens(arguments, journal.sent, journal.received)}")
    _name_skipped(asked, journal, unanswered, say)
    require(bool(chosen), f"no pairs are left: {output} is not written")
    say(f"train on them with --config.data.path={output}")


def _ask(arguments, chat: Chat, journal: Journal, template: str, passages: list[Document]) -> dict[str, str]:
    """Asks for the questions of passages; returns the reason for each text without any answer."""
    import tqdm

    from endx_jax.parallel.console import showing_progress

    prompts = {passage.text: template.replace("{passage}", passage.text) for passage in passages}
    done = generate(prompts, chat, journal, arguments.questions, arguments.concurrency)
    bar = tqdm.tqdm(done, total=len(passages), unit="passage", disable=not showing_progress(), leave=False)
    return {text: reason for text, reason in bar if reason}


def _ranker(name: str) -> "Rank":
    """Loads a model that ranks documents: an embedding model, or a reranker of the best by BM25."""
    from endx_jax.experiment.saved_model import load_pair_scorer
    from endx_jax.ranking.mining import rank_by_pairs

    return partial(rank_by_pairs, load_pair_scorer(name, embeddings=True))


def _best(
    pairs: list[tuple[str, Document]], documents: list[Document], rank: "Rank", top: int
) -> list[tuple[str, Document]]:
    """Returns the pairs whose passage is among the best of all documents for its question (round trip)."""
    from endx_jax.data.sets.records import RetrievalSet

    row = {document.text: n for n, document in enumerate(documents)}
    records = RetrievalSet(
        questions=tuple(question for question, _ in pairs),
        candidates=tuple(row),
        qrels=tuple((row[passage.text],) for _, passage in pairs),
        question_ids=tuple(f"q{n}" for n in range(len(pairs))),
        candidate_ids=tuple(document.name for document in documents),
    )
    ranked = rank(records, top)
    return [pair for pair, rows in zip(pairs, ranked.rows.tolist(), strict=True) if row[pair[1].text] in rows]


def _name_skipped(asked: list[Document], journal: Journal, unanswered: dict[str, str], say) -> None:
    """Prints how many passages have no questions, with reasons and ids."""
    reasons = {}
    for passage in asked:
        if (key := key_of(passage.text)) not in journal.questions:
            reasons[passage.name] = unanswered.get(passage.text) or journal.bad[key][-1]
    bad = sum(map(len, journal.bad.values()))
    if bad:
        say(f"{bad:,} answers held no questions; a passage with three of them is not asked again")
    for reason, number in Counter(reasons.values()).most_common():
        ids = [name for name, why in reasons.items() if why == reason][:NAMED]
        say(f"skipped {number:,} passages ({reason}): {json_files.format_names(ids)}")
    if unanswered:
        say("run the same command again to ask for those that got no answer")


def _estimate(arguments: argparse.Namespace, template: str, passages: list[Document], answered: int) -> str:
    count = len(passages)
    sent = sum(len(template) + len(passage.text) for passage in passages) // CHARACTERS
    before = f" ({answered:,} answered before)" if answered else ""
    asking = f"asking {arguments.model} about {count:,} passages{before}"
    return f"{asking}: about {_tokens(arguments, sent, TOKENS * arguments.questions * count)}"


def _tokens(arguments: argparse.Namespace, sent: int, received: int) -> str:
    cost = (sent * arguments.price[0] + received * arguments.price[-1]) / 1e6
    priced = f", {cost:,.2f} at --price" if any(arguments.price) else ""
    return f"{sent:,} tokens in and {received:,} out{priced}"


def _template(path: pathlib.Path | None) -> str:
    """Reads the template of the prompt."""
    if path is None:
        return PROMPT
    from endx_jax.data.formats import text_files

    template = "".join(line for _, line in text_files.lines(str(path)))
    require("{passage}" in template, f"{path} needs the place of the passage, {{passage}}; {{count}} is optional")
    return template


def _price(text: str) -> list[float]:
    """Parses a price per million tokens: one for all tokens, or two for those of prompts and of answers."""
    try:
        prices = [float(part) for part in text.split(",")]
    except ValueError:
        prices = []
    if not (len(prices) in (1, 2) and all(0 <= price < 1e9 for price in prices)):
        raise argparse.ArgumentTypeError(f"{text!r} is no price per million tokens, such as 0.5 or 0.15,0.6")
    return prices


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx generate", description=__doc__.partition(": ")[2])
    parser.add_argument("--corpus", required=True, help="folder of documents, or another corpus of endx encode")
    parser.add_argument(
        "--endpoint", required=True, metavar="URL", help="server with OpenAI's API, such as http://127.0.0.1:8000/v1"
    )
    parser.add_argument("--model", required=True, metavar="NAME", help="model that the server is asked for")
    parser.add_argument("--output", required=True, metavar="FILE", help=".jsonl file of pairs to write")
    parser.add_argument("--questions", type=int, default=3, metavar="N", help="questions for a passage [3]")
    parser.add_argument(
        "--prompt", type=pathlib.Path, metavar="FILE", help="template with {passage} and {count}, and your examples"
    )
    parser.add_argument(
        "--fields",
        default="{}",
        metavar="JSON",
        help="further fields of a request, such as '{\"temperature\": 0.7}' [max_tokens: 200 + 100 a question]",
    )
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests at a time [8]")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds to wait for a response [120]")
    parser.add_argument("--retries", type=int, default=6, metavar="N", help="repetitions of a failed request [6]")
    parser.add_argument("--limit", type=int, metavar="N", help="ask about the first N passages; 0: only estimate [all]")
    parser.add_argument(
        "--price",
        type=_price,
        default=[0.0],
        metavar="IN[,OUT]",
        help="price of a million tokens, to estimate the cost",
    )
    parser.add_argument(
        "--filter-with",
        metavar="MODEL",
        help="embedding model, or reranker of BM25's 100 best: keep questions for which it ranks their passage high",
    )
    parser.add_argument("--filter-top", type=int, default=10, metavar="K", help="lowest rank that is kept [10]")
    parser.add_argument("--text-column", help="text column of JSON, CSV, TSV and Arrow [text, contents, ...]")
    return parser
