"""`endx search`: searches an index interactively, from the command line or in bulk, and changes its documents."""

import argparse
import contextlib
import io
import itertools
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from etils import epath

from endx_jax import json_files
from endx_jax.cli.data_flags import add_corpus_flags, add_engine_flag, add_product_flag, add_rerank_flag, corpus_options
from endx_jax.errors import EndxError, counted, printable
from endx_jax.files import replacing
from endx_jax.settings import require

if TYPE_CHECKING:
    from endx_jax.cli.answers import NamedQuestion
    from endx_jax.data.sets.documents import FoundDocument
    from endx_jax.index.index import Index

# Number of questions that are searched together, and of documents that are added together.
TOGETHER = 1024


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)
    _check(arguments)

    from endx_jax.cli.answers import NamedQuestion

    if arguments.questions:
        from endx_jax.cli.questions import read_questions  # with all formats of data

        questions = read_questions(arguments.questions)
    else:
        numbered = enumerate(arguments.question, start=1)
        questions = [NamedQuestion(str(n), json_files.as_text(text, f"question {n}")) for n, text in numbered]

    from endx_jax.experiment.workdir import run_index
    from endx_jax.index.index_model import open_index
    from endx_jax.parallel.environment import keep_programs

    keep_programs()
    if arguments.rerank:
        from endx_jax.experiment.saved_model import load_pair_scorer

        arguments.rerank = load_pair_scorer(arguments.rerank)
    # The model is loaded on first use, as BM25 does not need it.
    path, model = arguments.index or run_index(arguments.workdir), arguments.model or arguments.workdir
    search = open_index(path, model, engine=arguments.engine, weight=arguments.weight)
    changed = _change(arguments, search)
    if arguments.mode is None:
        arguments.mode = search.default_mode if arguments.weight is None else "hybrid"
    if questions:
        with replacing(arguments.output) if arguments.output else contextlib.nullcontext(sys.stdout) as stream:
            _answer_all(arguments, search, questions, stream)
    elif not changed:
        _converse(arguments, search)


def _check(arguments: argparse.Namespace) -> None:
    """Parses the filter, and raises EndxError for contradicting arguments, before anything is loaded."""
    from endx_jax.index.filters import condition

    try:
        arguments.where = json_files.parse(arguments.where, "--where", dict)
    except EndxError as wrong:
        raise EndxError(f"""{wrong}; write JSON, such as --where='{{"lang": "en"}}'""") from None
    condition(arguments.where)
    source = arguments.workdir or arguments.index
    require(source is not None, "nothing to search: set --workdir=RUN or --index=FILE")
    require(not (arguments.question and arguments.questions), "give questions as arguments or by --questions, not both")
    require(arguments.top >= 1, f"--top={arguments.top}: it must be at least 1")
    require(arguments.rerank_top >= 1, f"--rerank-top={arguments.rerank_top}: it must be at least 1")
    mode_fits = arguments.weight is None or arguments.mode in (None, "hybrid")
    require(mode_fits, f"--weight is for --mode=hybrid, not {arguments.mode}")
    asks = bool(arguments.question or arguments.questions)
    require(asks or not arguments.output, "--output needs questions: give them as arguments or by --questions=FILE")
    if not (asks or arguments.add or arguments.delete or sys.stdin.isatty()):
        raise EndxError("standard input is not a terminal: give questions, or --questions=- to read them from it")


def _change(arguments: argparse.Namespace, search: "Index") -> bool:
    """Applies the requested changes to the index; returns true if there are any."""

    def held() -> str:
        return f"{counted(len(search), 'document')} in {search.path}"

    if arguments.add:
        from endx_jax.data.formats import read_corpus

        documents = read_corpus(arguments.add, **corpus_options(arguments))
        some = [*itertools.islice(documents, TOGETHER)]  # before the deletion, which can't be undone
    if arguments.delete:
        search.delete(arguments.delete)
        _note(f"deleted {len(set(arguments.delete)):,}; {held()}")
    if arguments.add:
        added, replaced = 0, 0
        while some:
            replaced += search.add(some, replace=True)
            added += len(some)
            some = [*itertools.islice(documents, TOGETHER)]
        _note(f"added {counted(added, 'document')}, replacing {replaced:,}; {held()}")
    return bool(arguments.delete or arguments.add)


def _answer_all(
    arguments: argparse.Namespace, search: "Index", questions: Sequence["NamedQuestion"], stream: IO
) -> None:
    from endx_jax.cli.answers import formatted

    started = time.monotonic()
    form, naming = _form(arguments), len(questions) > 1
    if form != "text" and isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # as in a file, since programs read both
    for start in range(0, len(questions), TOGETHER):
        some = questions[start : start + TOGETHER]
        answers = zip(some, _ask(arguments, search, [question.text for question in some]), strict=True)
        if start == 0:
            _note(search.describe(arguments.mode))
        stream.writelines(formatted(form, *pair, tag=arguments.mode, naming=naming) for pair in answers)
    stream.flush()
    if arguments.output:
        seconds = time.monotonic() - started
        counts = f"{counted(len(questions), 'question')}, {counted(len(search), 'document')}"
        _note(f"{counts}, {seconds:.1f} s: {arguments.output}")


def _ask(arguments: argparse.Namespace, search: "Index", texts: list[str]) -> list[list["FoundDocument"]]:
    count = max(arguments.top, arguments.rerank_top) if arguments.rerank else arguments.top
    from endx_jax.index.filters import why_nothing

    answers = search.search(texts, count, mode=arguments.mode, where=arguments.where)
    if arguments.where and not any(answers):
        _note(f"nothing found: {why_nothing(search.snapshot.where, arguments.where)}")
    if not arguments.rerank:
        return answers
    from endx_jax.ranking.rerank import rerank_answers

    return rerank_answers(arguments.rerank, texts, answers, arguments.top)


def _converse(arguments: argparse.Namespace, search: "Index") -> None:
    """Reads questions from the terminal and prints their answers until the input ends (Ctrl-D).

    Lines can be edited and recalled as in a shell. Empty lines are skipped.
    """
    import readline  # noqa: F401  # importing it enables line editing in `input`

    from endx_jax.cli.answers import to_text

    _ask(arguments, search, ["ready"])  # loads and compiles before the first question
    _note(f"{search.describe(arguments.mode)}\nType a question; Ctrl-D exits.")
    while True:
        try:
            question = input("? ").strip()
        except EOFError:
            print()
            return
        if question:
            started = time.monotonic()
            (answers,) = _ask(arguments, search, [question])
            print(f"{to_text(answers)}  {1000 * (time.monotonic() - started):.0f} ms\n", flush=True)


def _form(arguments: argparse.Namespace) -> str:
    """Returns the requested format, by default depending on the output's name and the source of the questions."""
    if arguments.format:
        return arguments.format
    if not arguments.questions:
        return "text"
    return "jsonl" if arguments.output and arguments.output.suffix == ".jsonl" else "trec"


def _note(line: str) -> None:
    """Prints a message that is not a result."""
    print(printable(line), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="endx search",
        description="searches an index, interactively or for given questions; --add and --delete change it.",
    )
    parser.add_argument("question", nargs="*", help="questions, each in quotes [interactive prompt; Ctrl-D exits]")
    parser.add_argument("--workdir", type=epath.Path, help="workdir of a run with a model and an index")
    parser.add_argument(
        "--index", type=epath.Path, help="index that train, evaluate or encode wrote [index.sqlite in WORKDIR]"
    )
    parser.add_argument("--model", help="model that encoded the index [the one that the index names]")
    add_product_flag(parser)
    asking = parser.add_argument_group("questions in bulk")
    asking.add_argument(
        "--questions",
        metavar="FILE",
        help="file of questions: lines, lines of id, tab and question, JSONL or a table; -: standard input",
    )
    asking.add_argument("--output", type=pathlib.Path, metavar="FILE", help="file for the answers [standard output]")
    asking.add_argument(
        "--format",
        choices=("text", "trec", "jsonl"),
        help="format of the answers [text; with --questions a TREC run, or JSONL for a .jsonl OUTPUT]",
    )
    how = parser.add_argument_group("how to search")
    how.add_argument("--top", type=int, default=10, metavar="K", help="answers per question [10]")
    how.add_argument(
        "--mode",
        choices=("dense", "bm25", "hybrid"),
        help="search by embeddings, words, or both [hybrid, or dense if it was better in validation]",
    )
    how.add_argument(
        "--where",
        default="{}",
        metavar="JSON",
        help='only documents with this metadata, such as \'{"lang": ["en", "de"], "year": {"gte": 2020}}\'',
    )
    how.add_argument(
        "--weight",
        type=float,
        help="weight of BM25 beside the dense score in hybrid search [the model's, else 0.08 for cosines; "
        "others are fused by reciprocal ranks]",
    )
    add_engine_flag(how)
    add_rerank_flag(how, "that re-ranks the best answers")
    how.add_argument(
        "--rerank-top", type=int, default=50, metavar="N", help="number of answers that --rerank re-ranks [50]"
    )
    change = parser.add_argument_group("changes of the index")
    change.add_argument(
        "--add", metavar="FILE", help="corpus to add, as for encode; documents with a known id are replaced"
    )
    add_corpus_flags(change)
    change.add_argument("--delete", action="append", metavar="ID", help="id of a document to delete; repeatable")
    return parser
