"""`endx search`: searches an index, interactively or for given questions; --add and --delete change it."""

import argparse
import contextlib
import dataclasses
import io
import itertools
import operator
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Literal

from etils import epath

from endx_jax import json_files
from endx_jax.cli.data_flags import add_corpus_flags, add_product_flag, check_reading
from endx_jax.cli.parser import main_of
from endx_jax.errors import EndxError, counted, printable
from endx_jax.files import locked, replacing
from endx_jax.index.approximate import ENGINES, EXACT
from endx_jax.settings import require
from endx_jax.uploads import renamed, uploads

if TYPE_CHECKING:
    from endx_jax.cli.answers import NamedQuestion
    from endx_jax.data.sets.documents import Document, FoundDocument
    from endx_jax.index.index import Index

Ask = Callable[[list[str]], "list[list[FoundDocument]]"]

# Number of questions that are searched together, and of documents or passages that are added together.
TOGETHER = 1024


@uploads()
def search(
    question: Sequence[str] = (),
    *,
    workdir: epath.Path | None = None,
    index: epath.Path | None = None,
    model: str = "",
    questions: str = "",
    output: epath.Path | None = None,
    format: Literal["", "text", "trec", "jsonl"] = "",
    top: int = 10,
    mode: Literal["", "dense", "bm25", "hybrid"] = "",
    where: str = "",
    weight: float | None = None,
    engine: str = EXACT,
    rerank: epath.Path | None = None,
    rerank_top: int = 50,
    add: str = "",
    delete: list[str] | None = None,
    **reading: Any,
) -> None:
    """Answers questions, those of a terminal if none are given, or changes the documents of an index.

    Args:
      question: questions, each in quotes [interactive prompt; Ctrl-D exits]
      workdir: workdir of a run with a model and an index
      index: index that train, evaluate or encode wrote [index.sqlite in WORKDIR]
      model: model that encoded the index [the one that the index names]
      questions: file of questions: lines, lines of id, tab and question, JSONL or a table; -: standard input
      output: file for the answers [standard output]
      format: format of the answers [text; with --questions a TREC run, or JSONL for a .jsonl OUTPUT]
      top: answers per question
      mode: search by embeddings, words, or both [hybrid, or dense if it was better in validation]
      where: only documents with this metadata, such as '{"lang": ["en", "de"], "year": {"gte": 2020}}'
      weight: weight of BM25 beside the dense score in hybrid search [the model's, else 0.08 for cosines; others are
        fused by reciprocal ranks]
      engine: exact search, or by faiss
      rerank: workdir of a pair classifier or of late interaction, or folder or name of a CrossEncoder or
        MultiVectorEncoder, that re-ranks the best answers
      rerank_top: number of answers that --rerank re-ranks, at least --top
      add: corpus to add, as for encode; documents with a known id are replaced;
        without ids, a new text gets a random one, and one that the index has stays there
      delete: id of a document to delete; repeatable
      **reading: split and columns of the corpus to add, as for `read_corpus`
    """
    from endx_jax.index.filters import condition, why_nothing

    try:
        wanted = json_files.parse(where or "{}", "--where", dict)
    except EndxError as wrong:
        raise EndxError(f"""{wrong}; write JSON, such as --where='{{"lang": "en"}}'""") from None
    condition(wanted)
    require(bool(workdir or index), "nothing to search: set --workdir=RUN or --index=FILE")
    require(not (question and questions), "give questions as arguments or by --questions, not both")
    require(top >= 1, f"--top={top}: it must be at least 1")
    require(rerank_top >= 1, f"--rerank-top={rerank_top}: it must be at least 1")
    require(weight is None or mode in ("", "hybrid"), f"--weight is for --mode=hybrid, not {mode}")
    check_reading(reading, "--add", add)
    asks = bool(question or questions)
    require(asks or not output, "--output needs questions: give them as arguments or by --questions=FILE")
    if not (asks or add or delete or sys.stdin.isatty()):
        raise EndxError("standard input is not a terminal: give questions, or --questions=- to read them from it")

    from endx_jax.cli.answers import NamedQuestion

    if questions:
        from endx_jax.cli.questions import read_questions  # with all formats of data

        named = read_questions(questions)
    else:
        numbered = enumerate(question, start=1)
        named = [NamedQuestion(str(n), json_files.as_text(text, f"question {n}")) for n, text in numbered]

    from endx_jax.experiment.workdir import run_index
    from endx_jax.index.index_model import open_index
    from endx_jax.parallel.environment import keep_programs

    keep_programs()
    pairs = None
    if rerank:
        from endx_jax.experiment.saved_model import load_pair_scorer
        from endx_jax.ranking.rerank import rerank_answers

        pairs = load_pair_scorer(rerank)
    # The model is loaded on first use, as BM25 does not need it.
    opened = open_index(index or run_index(workdir or ""), model or workdir, engine=engine, weight=weight)
    if add or delete:  # another `endx search` waits; servers and Python may change documents meanwhile
        with locked(opened.path.with_name(f"{opened.path.name}.lock"), waits=True):
            _change(opened, add, delete or [], reading)
    chosen = mode or (opened.default_mode if weight is None else "hybrid")
    first = max(top, rerank_top) if pairs else top
    about = opened.describe(chosen) + (f", the best {first:,} re-ranked by {rerank}" if pairs else "")

    def ask(texts: list[str]) -> "list[list[FoundDocument]]":
        answers = opened.search(texts, first, mode=chosen, where=wanted)
        if wanted and not any(answers) and (reason := why_nothing(opened.snapshot.where, wanted)):
            _note(f"nothing found: {reason}")
        return rerank_answers(pairs, texts, answers, top) if pairs else answers

    if named:
        form = format or ("text" if not questions else "jsonl" if output and output.suffix == ".jsonl" else "trec")
        started = time.monotonic()
        with replacing(output) if output else contextlib.nullcontext(sys.stdout) as stream:
            _answer_all(about, ask, named, stream, form, chosen)
        if output:
            seconds = time.monotonic() - started
            counts = f"{counted(len(named), 'question')}, {counted(len(opened), 'document')}"
            _note(f"{counts}, {seconds:.1f} s: {output}")
    elif not (add or delete):
        _converse(about, ask)


def _change(index: "Index", add: str, delete: Sequence[str], reading: Mapping[str, Any]) -> None:
    """Deletes documents by their ids, and then adds those of a corpus."""

    def held() -> str:
        return f"{counted(len(index), 'document')} in {index.path}"

    if add:
        from endx_jax.data.formats import read_corpus

        parts = _in_parts(_with_ids(index, read_corpus(add, **reading, say=_note), delete))
        first = [*itertools.islice(parts, 1)]  # before the deletion, which can't be undone
    if delete:
        index.delete(delete)
        _note(f"deleted {len(set(delete)):,}; {held()}")
    if add:
        added, replaced = 0, 0
        for part in itertools.chain(first, parts):
            replaced += index.add(part, replace=True)
            added += sum(text.passage < 2 for text in part)
        _note(f"added {counted(added, 'document')}, replacing {replaced:,}; {held()}")


def _with_ids(index: "Index", documents: Iterable["Document"], deleted: Sequence[str]) -> Iterator["Document"]:
    """Yields the documents; one whose id was counted gets a random one, unless the index has a document of this text.

    That document stays as it is, but for further known questions; without any it is left out.
    """
    ids: dict[int, str] = {}  # by the hashes of the texts, which need less memory
    for document in documents:
        if document.numbered:
            ids = ids or {hash(old.text): old.id for _, old in index.snapshot if old.id not in deleted}
            known = ids.get(hash(document.text))
            old = None if known is None else index.get(known)
            if old is None or old.text != document.text:
                document = dataclasses.replace(document, id=uuid.uuid4().hex)
            else:
                questions = tuple(dict.fromkeys([*old.questions, *document.questions]))
                if questions == old.questions:
                    continue
                document = dataclasses.replace(old, questions=questions)
        yield document


def _in_parts(documents: Iterable["Document"]) -> "Iterator[list[Document]]":
    """Yields documents or passages, at least `TOGETHER` at a time, and all passages of a document in one part."""
    part: list[Document] = []
    for _, passages in itertools.groupby(documents, operator.attrgetter("id")):
        part += passages
        if len(part) >= TOGETHER:
            yield part
            part = []
    if part:
        yield part


def _answer_all(about: str, ask: Ask, questions: Sequence["NamedQuestion"], stream: IO, form: str, mode: str) -> None:
    """Writes the answers to questions in the format `form`, and a note `about` the search."""
    from endx_jax.cli.answers import formatted

    if form != "text" and isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # as in a file, since programs read both
    for start in range(0, len(questions), TOGETHER):
        some = questions[start : start + TOGETHER]
        answers = zip(some, ask([question.text for question in some]), strict=True)
        if start == 0:
            _note(about)
        stream.writelines(formatted(form, *pair, tag=mode, naming=len(questions) > 1) for pair in answers)
    stream.flush()


def _converse(about: str, ask: Ask) -> None:
    """Answers questions typed at a terminal, with line editing and history, until the input ends (Ctrl-D)."""
    import readline  # noqa: F401  # importing it enables line editing in `input`

    from endx_jax.cli.answers import to_text

    ask(["ready"])  # loads and compiles before the first question
    _note(f"{about}\nType a question; Ctrl-D exits.")
    while True:
        try:
            question = input("? ").strip()
        except EOFError:
            print()
            return
        if question:
            started = time.monotonic()
            (answers,) = ask([question])
            print(f"{to_text(answers)}  {1000 * (time.monotonic() - started):.0f} ms\n", flush=True)


def _note(line: str) -> None:
    """Prints a message that is not a result."""
    print(printable(renamed(line)), file=sys.stderr, flush=True)


GROUPS = {
    "questions in bulk": ("questions", "output", "format"),
    "how to search": ("top", "mode", "where", "weight", "engine", "rerank", "rerank_top"),
    "changes of the index": ("add", "delete"),
}
NAMES = {"questions": "FILE", "output": "FILE", "where": "JSON", "rerank": "WORKDIR", "add": "FILE"}
CHANGES: dict[str, dict[str, Any]] = {name: {"metavar": metavar} for name, metavar in NAMES.items()}
CHANGES |= {"engine": {"choices": (EXACT, *ENGINES)}, "delete": {"action": "append", "nargs": None, "metavar": "ID"}}


def _add_reading(parser: argparse.ArgumentParser) -> None:
    add_corpus_flags(parser.add_argument_group("corpus of --add"))


main = main_of(__doc__, search, _add_reading, add_product_flag, positional=["question"], groups=GROUPS, **CHANGES)
