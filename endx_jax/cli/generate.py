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
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from endx_jax import json_files
from endx_jax.buckets import url_of
from endx_jax.cli.parser import main_of
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


def write_questions(
    *,
    corpus: str,
    endpoint: str,
    model: str,
    output: str,
    questions: int = 3,
    prompt: pathlib.Path | None = None,
    fields: str = "{}",
    concurrency: int = 8,
    timeout: float = 120.0,
    retries: int = 6,
    limit: int | None = None,
    price: Sequence[float] = (),
    filter_with: str = "",
    filter_top: int = 10,
    text_column: str | None = None,
) -> None:
    """Writes pairs of questions and passages.

    Args:
      corpus: folder of documents, or another corpus of endx encode
      endpoint: server with OpenAI's API, such as http://127.0.0.1:8000/v1
      model: model that the server is asked for
      output: .jsonl file of pairs to write
      questions: questions for a passage
      prompt: file of a template with {passage} and {count}, and your examples
      fields: further fields of a request, such as '{"temperature": 0.7}' [max_tokens: 200 + 100 a question]
      concurrency: requests at a time
      timeout: seconds to wait for a response
      retries: repetitions of a failed request
      limit: ask about the first N passages; 0: only estimate [all]
      price: price of a million tokens, to estimate the cost
      filter_with: embedding model, or reranker of BM25's 100 best: keep questions for which it ranks their passage high
      filter_top: lowest rank that is kept
      text_column: text column of JSON, CSV, TSV and Arrow [text, contents, ...]
    """
    limits = {"questions": (questions, 1), "concurrency": (concurrency, 1), "retries": (retries, 0)}
    for name, (value, least) in {**limits, "filter-top": (filter_top, 1)}.items():
        check_range(f"--{name}", value, least, 1000)
    require(timeout > 0, f"--timeout={timeout}: give seconds above 0")
    require(limit is None or limit >= 0, f"--limit={limit}: give a number of passages")
    template = _template(prompt).replace("{count}", str(questions))
    request = {"model": model, "max_tokens": 200 + 100 * questions} | json_files.parse(fields, "--fields", dict)
    chat = Chat(endpoint, request, os.environ.get(KEY, "").strip(), timeout, retries)
    file = pathlib.Path(output)
    journal_file = file.with_name(f"{file.name}.journal")
    require(
        not url_of(output), f"{output} is in a bucket, which a kill would leave without the journal: name a local file"
    )
    require(file.parent.is_dir(), f"{file.parent} is no folder: make it first")
    require(journal_file.exists() or not file.exists(), f"{file} exists and has no journal: name another --output")

    import tqdm

    from endx_jax.data.formats import read_corpus
    from endx_jax.parallel.console import say, showing_progress

    def tokens(sent: int, received: int) -> str:
        cost = (sent * price[0] + received * price[-1]) / 1e6 if price else 0.0
        return f"{sent:,} tokens in and {received:,} out" + (f", {cost:,.2f} at --price" if any(price) else "")

    def estimate(passages: Sequence[Document], answered: int) -> str:
        sent = sum(len(template) + len(passage.text) for passage in passages) // CHARACTERS
        before = f" ({answered:,} answered before)" if answered else ""
        asking = f"asking {model} about {len(passages):,} passages{before}"
        return f"{asking}: about {tokens(sent, TOKENS * questions * len(passages))}"

    documents = [*distinct(read_corpus(corpus, text_column=text_column, say=say))]
    asked = documents if limit is None else documents[:limit]
    if not asked:
        say(estimate(documents, 0))
        return
    rank = _ranker(filter_with) if filter_with else None  # before anything is paid
    about = {"fields": request, "prompt": template, "questions": questions}
    with locked(file.with_name(f".{file.name}.lock")), contextlib.closing(Journal(journal_file, about)) as journal:
        if torn := journal.torn:
            say(f"{journal_file}: {len(torn):,} broken lines are skipped: {', '.join(map(str, torn[:NAMED]))}")
        left = [document for document in asked if journal.tries_left(key_of(document.text))]
        say(estimate(left, len(asked) - len(left)))
        prompts = {passage.text: template.replace("{passage}", passage.text) for passage in left}
        done = generate(prompts, chat, journal, questions, concurrency)
        bar = tqdm.tqdm(done, total=len(left), unit="passage", disable=not showing_progress(), leave=False)
        unanswered = {text: reason for text, reason in bar if reason}
        pairs, repeated = pairs_of(asked, journal)
        chosen = _best(pairs, documents, rank, filter_top) if rank and pairs else pairs
        if chosen:
            rows = ({"question": question, "answer": passage.text, "id": passage.name} for question, passage in chosen)
            with replacing(file) as stream:
                stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    dropped = f"{repeated:,} of several passages and {len(pairs) - len(chosen):,} by --filter-with are left out"
    say(f"{file if chosen else 'the result'} holds {len(chosen):,} pairs of {len(asked):,} passages; {dropped}")
    say(f"tokens of all answers in {journal_file}: {tokens(journal.sent, journal.received)}")
    _name_skipped(asked, journal, unanswered, say)
    require(bool(chosen), f"no pairs are left: {file} is not written")
    say(f"train on them with --config.data.path={file}")


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
    if any(map(journal.tries_left, map(key_of, unanswered))):
        say("run the same command again to ask for those that got no answer")


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


NAMES = {"endpoint": "URL", "model": "NAME", "fields": "JSON", "filter_with": "MODEL"}
CHANGES: dict[str, dict[str, Any]] = {name: {"metavar": metavar} for name, metavar in NAMES.items()}
CHANGES["price"] = {"type": _price, "nargs": None, "metavar": "IN[,OUT]"}
main = main_of(__doc__, write_questions, **CHANGES)
