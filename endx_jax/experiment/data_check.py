"""Findings about training data: rows, texts, leaks, lengths, and how well search works before training."""

import collections
import contextlib
import dataclasses
import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import regex

from endx_jax import json_files
from endx_jax.data.formats import Data, row_files, text_files
from endx_jax.data.formats.columns import LABEL
from endx_jax.data.formats.tables import COLUMNS, HTML, ColumnParser
from endx_jax.data.sets.examples import Example, texts_of
from endx_jax.data.sets.records import Pools, RetrievalSet, questions_by_candidate
from endx_jax.data.sets.splits import limit_questions, take
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import find_data, parted
from endx_jax.data.tokenization import MULTILINGUAL
from endx_jax.errors import EndxError, counted, printable
from endx_jax.inference import EmbeddingModel, load
from endx_jax.methods.evaluation import UNTRAINED, UNTRAINED_HYBRID
from endx_jax.metrics.significance import FEWEST, questions_needed
from endx_jax.ranking.hybrid import default_hybrid
from endx_jax.ranking.results import report

# Most questions that are ranked, and answers in their pool: encoded in seconds.
RANKED, POOL = 300, 1000
WORTH_TRAINING = 100  # with fewer pairs, the page suggests search without training
TOKENIZED = 10_000  # texts of a side whose tokens are counted at most
GAINS = (0.02, 0.05, 0.1)
DEVIATION = 0.4  # of two systems' difference in reciprocal rank, if there are too few questions to measure it
FEW_VALUES = 8  # different values of an unused column that are shown at most
MEASURE = "mrr"
# A finding and its count: None if nothing is counted, 0 if nothing was found.
Finding = tuple[str, int | None]
# Damage to texts by spreadsheets, web pages and wrong encodings, and the check for it.
DAMAGE: dict[str, Callable[[str], object]] = {
    "that are an error value of a spreadsheet": re.compile(r"#(REF!|N/A|NAME\?|VALUE!|DIV/0!|NULL!|NUM!)").fullmatch,
    "with U+FFFD in place of lost letters": re.compile("\ufffd").search,
    "with NUL characters": re.compile("\0").search,
    "that begin with tags of HTML": HTML.match,
    "in UTF-8 that were read in another encoding": lambda text: not text.isascii() and is_misread(text),
}
ALIKE = ", apart from case, punctuation and spaces"


@dataclasses.dataclass(frozen=True, eq=False)
class DataCheck:
    """Findings about training data; its `repr` is the page that `endx check` prints.

    Attributes:
      counts: numbers of `questions`, `answers`, `pairs`, and of questions in `train`, `validation` and `test`.
      findings: problems for training or evaluation, one line each.
      metrics: metrics of `bm25`, of the `untrained` model, and of both (`untrained hybrid`), by system.
      needed: number of held-out questions that show a gain of MRR, by gain: see `questions_needed`.
      next: the command to run next.
      page: the text that is shown.
    """

    counts: Mapping[str, int]
    findings: tuple[str, ...]
    metrics: Mapping[str, Mapping[str, float]]
    needed: Mapping[float, int]
    next: str
    page: str = dataclasses.field(repr=False)

    def __repr__(self) -> str:
        return self.page


def check_data(
    settings: DataSettings, model: str | os.PathLike, *, in_memory: Collection[str] = (), default: str
) -> DataCheck:
    """Checks data before training: see `check.check`.

    Args:
      settings: settings by which the data are read; `path` names them, and `test_path` the test data.
      model: pretrained folder or name of the model to train.
      in_memory: `path` and `test_path`, if these are temporary files of data in memory.
      default: model of the recipe that this command trains.
    """
    data = find_data(settings.path, settings, settings.split, data_format=settings.format, strict=True)
    records, encoder = data.with_options(whole=False).records(), load(model)
    records = dataclasses.replace(records, language=settings.language)
    parts, findings = {"train": records}, []
    if settings.test_path:
        parts["test"] = find_data(settings.test_path, settings, settings.test_split).records()
    else:
        try:
            parts = vars(parted(records, settings))
        except EndxError as failure:
            findings.append(f"training ends with an error: {failure}")
    counts = {"questions": len(records.questions), "answers": len(records.candidates), "pairs": len(records.pairs)}
    counts |= {"test": 0} | {name: len(part.questions) for name, part in parts.items()}
    found = [*_rows(data), *_texts(records), *_leaks(parts), *_lengths(records, settings, encoder)]
    findings += [text if count is None else f"{text}: {count:,}" for text, count in found if count != 0]
    tokenizer = encoder.encoder.processors["answer"].tokenizer
    unfit = [line.removeprefix("warning: ") for line in tokenizer.describe_unfit(records.candidates, str(model))]
    findings += unfit
    metrics, table, deviation = _ranked(records, encoder)
    needed = {gain: questions_needed(deviation or DEVIATION, gain) for gain in GAINS}
    chosen, few = MULTILINGUAL if unfit else model, counts["pairs"] < WORTH_TRAINING
    command = _next(settings, chosen, default, in_memory, few=few)
    sizes = ", ".join(counted(counts[f"{noun}s"], noun) for noun in ("question", "answer", "pair"))
    lines = [
        f"{'pairs in memory' if 'path' in in_memory else settings.path}: {sizes}",
        f"language: {records.text_language.title()}",
        "questions by split: " + ", ".join(f"{counts[name]:,} {name}" for name in parts),
        "",
        *(f"- {finding}" for finding in findings or ["nothing found that would mislead training"]),
        "",
        *table,
        "",
        f"A gain of {_listed(f'{gain:.2f}' for gain in GAINS)} of {MEASURE} is seen in four of five cases "
        f"with {_listed(f'{count:,}' for count in needed.values())} test questions; this data has {counts['test']:,}.",
        "",
        f"next: {command}",
    ]
    return DataCheck(counts, tuple(findings), metrics, needed, command, printable("\n".join(lines)))


def _rows(data: Data) -> Iterator[Finding]:
    """Yields findings about the rows of a table: repeated ones, contradictions, and columns that are not used."""
    if not data.format.in_parts:
        return
    right: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong: set[tuple[str, str]] = set()
    values = collections.defaultdict[str, set[str]](set)

    def count(example: Example) -> None:
        right.update((example.question, text) for text in texts_of(example.right))
        wrong.update((example.question, text) for text in texts_of(example.wrong))

    is_table, options = data.format is COLUMNS, data.options
    for example in () if is_table else data.examples():
        count(example)
    columns = ColumnParser(options.question_column, options.answer_column)
    invalid = text_files.InvalidRows(data.path, skip=options.skip_invalid)
    for _, where, row in row_files.read_rows(data.path, invalid, split=options.split) if is_table else ():
        for asked in columns.asked(row, where):
            with invalid.row():
                count(columns(asked, where))
                used = columns.choose(asked, where)
                taken = (used.question, used.answer, *used.negatives, *used.labels)
                for name in (name for name in asked if name not in taken and len(values[name]) <= FEW_VALUES):
                    values[name].add("" if json_files.is_missing(asked[name]) else str(asked[name]).strip())
    yield "rows that repeat the question and answer of another row", right.total() - len(right)
    both = sum(pair in right for pair in wrong)
    yield "answers that are right in one row and wrong in another, and count as right", both
    for name, distinct in values.items():
        distinct.discard("")
        labels = len(distinct) > 1 and all(map(LABEL.fullmatch, distinct))
        few = f" (values {_listed(sorted(distinct) or ['empty'])[:60]})" * (len(distinct) <= FEW_VALUES)
        ids = " (it looks like ids)" * (not few and all(re.fullmatch(r"\S*\d\S*", value) for value in distinct))
        remedy = ": rename it to label, if 0 marks wrong answers" * labels
        yield f"column {name!r} is not used{few}{ids}{remedy}", None


def _texts(records: RetrievalSet) -> Iterator[Finding]:
    """Yields findings about the texts of both sides."""
    for damage, holds in DAMAGE.items():
        damaged = [text for text in (*records.questions, *records.candidates) if holds(text)]
        yield f"texts {damage}{f', such as {damaged[0]!r:.60}' if damaged else ''}", len(damaged)
    answers = set(records.candidates)
    same = sum(records.questions[q] == records.candidates[c] for q, c in records.pairs)
    yield "pairs with the same text on both sides", same
    mirrored = sum(text in answers for text in records.questions) - same
    yield "texts that are a question in one row and an answer in another", mirrored
    alike = len(records.questions) - len(set(map(_plain, records.questions)))
    yield "questions that differ from another one in case, punctuation or spaces only", alike
    shared = sum(len(questions) > 1 for questions in questions_by_candidate(records.qrels).values())
    yield "answers with several questions, which stay in one split", shared
    yield "questions with several answers", sum(len(right) > 1 for right in records.qrels)


def _leaks(parts: Mapping[str, RetrievalSet]) -> Iterator[Finding]:
    """Yields findings about held-out questions and answers that are in the training data too."""
    train, *others = parts
    seen, answers = ({_plain(text) for text in side} for side in (parts[train].questions, parts[train].candidates))
    for name in others:
        held = parts[name]
        repeated = sum(_plain(text) in seen for text in held.questions)
        yield f"{name} questions that are in the training data{ALIKE}", repeated
        right = {candidate for row in held.qrels for candidate in row}
        repeated = sum(_plain(held.candidates[candidate]) in answers for candidate in right)
        yield f"right answers of {name} questions that are in the training data{ALIKE}", repeated


def _lengths(records: RetrievalSet, settings: DataSettings, model: EmbeddingModel) -> Iterator[Finding]:
    """Yields findings about texts that are longer than training reads."""
    sides = {"question": (records.questions, settings.question_length)}
    sides["answer"] = (records.candidates, settings.answer_length)
    for side, (texts, length) in sides.items():
        processor, some = model.encoder.processors[side], texts[:TOKENIZED]
        cut = dataclasses.replace(processor, length=length)(some).cut
        of = f" among the first {TOKENIZED:,}" * (len(some) < len(texts))
        limit = f"{length} tokens, which are cut (data.{side}_length)"
        yield f"{side}s{of} longer than {limit}", cut


def _ranked(records: RetrievalSet, model: EmbeddingModel) -> tuple[dict[str, Mapping[str, float]], list[str], float]:
    """Ranks without training; returns metrics by system, lines to print, and the deviation of their difference."""
    some = limit_questions(records, RANKED)
    if len(records.candidates) > POOL:
        some = take(records, RANKED)
    pools = Pools({"all": some})
    hybrid = default_hybrid(cosine=model.cosine)
    results, _ = report(pools, {UNTRAINED: model.comparable}, fused=UNTRAINED_HYBRID, hybrid=hybrid)
    evaluations = results.evaluations["all"]
    total = f" of {len(records.questions):,}" * (len(some.questions) < len(records.questions))
    heading = (
        f"{len(some.questions):,}{total} questions in a pool of {len(some.candidates):,} answers, before training:"
    )
    difference = evaluations[UNTRAINED].values[MEASURE] - evaluations["bm25"].values[MEASURE]
    deviation = float(difference.std()) if len(difference) >= FEWEST else 0.0
    return {name: result.metrics for name, result in evaluations.items()}, [heading, results.tables()], deviation


def _next(
    settings: DataSettings, model: str | os.PathLike, default: str, in_memory: Collection[str], *, few: bool
) -> str:
    """Returns the command that serves the data, or trains on it, with the settings by which it was read."""
    defaults = DataSettings(path=settings.path)
    values = {name: value for name, value in vars(settings).items() if name not in in_memory}
    changed = {name: value for name, value in values.items() if value != getattr(defaults, name)}
    if "path" in in_memory:
        given = {f"data.{name}": value for name, value in changed.items()}
        given |= {"model.pretrained": os.fspath(model)} if model != default else {}
        return f"endx_jax.train(pairs, settings={given})" if given else "endx_jax.train(pairs)"
    if few and not settings.skip_invalid:  # `endx serve` has no such flag
        return shlex.join(["endx", "serve", f"--model={model}", *settings.corpus_flags])
    flags = [f"--config.data.{name}={value}" for name, value in changed.items()]
    flags += [f"--config.model.pretrained={model}"] * (model != default)
    return shlex.join(["endx", "train", "--config=minilm", f"--config.data.path={settings.path}", *flags])


def is_misread(text: str) -> bool:
    """Returns true if letters of a text are bytes of UTF-8 that were read as Windows-1252 or Latin-1."""
    for run in re.findall(r"[^\x00-\x7f]{2,}", text):
        for encoding in ("windows-1252", "latin-1"):
            with contextlib.suppress(UnicodeError):
                return bool(run.encode(encoding).decode())
    return False


def _plain(text: str) -> str:
    """Returns a text without punctuation, with equal case, character width and spaces, to compare texts."""
    # Vowel signs of Indic and Thai words are marks, which `re` takes for punctuation. A mark that follows no letter, as
    # in emoji, is left out.
    words = regex.findall(r"(?!\p{M})\w+", unicodedata.normalize("NFKC", text).casefold())
    return " ".join(words) or text


def _listed(parts: Iterable[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last
