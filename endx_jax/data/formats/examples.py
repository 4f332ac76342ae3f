"""Reader of rows with a question, right passages and hard negatives: tables and the training files of other tools.

- DPR (Karpukhin et al. 2020): `question`, `positive_ctxs` and optional `hard_negative_ctxs`, each a list of
  `title`, `text` and `passage_id` or `psg_id`. `negative_ctxs`, which are drawn at random, are ignored. Questions
  have no ids.
- Tevatron (Gao et al. 2022): `query_id`, `query`, `positive_passages` and optional `negative_passages`, each a list of
  `docid`, `title` and `text`.
- FlagEmbedding (the BGE models): `query`, a list of texts `pos` and an optional one `neg`. `prompt` and `type` are
  ignored.

Rows of Tevatron and FlagEmbedding may have a teacher's scores, `pos_scores` and `neg_scores`, lists of as many numbers
as there are right passages and negatives. Then all rows must have them.

A passage is its title, a space and its text. Empty passages, and questions without a right passage, are ignored.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.data.formats import columns, text_files
from endx_jax.data.formats.columns import ANSWER, FLAGS, JUDGING, LABEL, NEGATIVE, QUESTION
from endx_jax.data.formats.row_files import MOST_SCORE, Row
from endx_jax.data.sets.records import RetrievalSet, RetrievalSetBuilder
from endx_jax.errors import EndxError, counted

NUMBER = re.compile(r"[+-]?[\d.]+")


class Named(NamedTuple):
    """Text with its id in the file; the id is empty if the file has none."""

    text: str
    id: str = ""


class Example(NamedTuple):
    """Contents of one row; the scores are a teacher's, of the right and then of the wrong passages."""

    question: Named
    right: list[Named]
    wrong: list[Named]
    scores: list[float] | None = None


# Function (values of a row, its location for messages) -> contents of the row.
Parser = Callable[[dict, str], Example]


class ExampleSet:
    """Builder of a retrieval set from examples; equal texts are merged under the id of the first one.

    Questions without ids get the ids `q0`, `q1`, ..., and passages `d0`, `d1`, ..., in order.
    """

    def __init__(self):
        self._merged = RetrievalSetBuilder()
        self._texts: dict[tuple[str, str], str] = {}
        self._scored: bool | None = None
        self._wrong_only: list[tuple[Example, str]] = []

    def add(self, example: Example, where: str) -> None:
        """Adds an example; one without a right passage counts if another one of the question has a right passage.

        Raises:
          EndxError: two texts have the same id, or only some rows have scores.
        """
        if example.right:
            self._store(example, where)
        elif example.wrong:
            self._wrong_only.append((example, where))  # the right passage may be in a later row

    def _store(self, example: Example, where: str) -> None:
        question, right, wrong, scores = example
        if self._scored not in (None, scores is not None):
            here, before = ("scores", "none") if scores else ("no scores", "some")
            raise EndxError(f"{where}: the row has {here} of a teacher, and the rows above have {before}")
        merged = self._merged
        name = question.id
        if not name and question.text not in merged.questions:
            name = self._free("question", f"q{len(merged.questions)}")
        # All ids are checked before anything is stored, so that no part of an invalid row is added.
        texts = {("question", name): question.text} if name else {}
        for passage in (*right, *wrong):
            if passage.id and texts.setdefault(("passage", passage.id), passage.text) != passage.text:
                raise EndxError(f"{where}: the passage id {passage.id[:100]!r} belongs to two texts")
        for (kind, identifier), text in texts.items():
            if self._texts.get((kind, identifier), text) != text:
                raise EndxError(f"{where}: the {kind} id {identifier[:100]!r} belongs to two texts")
        self._scored = scores is not None
        self._texts.update(texts)
        row = merged.question(question.text, name)
        passages = [self._row(passage) for passage in (*right, *wrong)]
        for candidate in passages[: len(right)]:
            merged.judge(row, candidate)
        if wrong:
            merged.wrong[row].update(passages[len(right) :])
        for candidate, score in zip(passages, scores or (), strict=scores is not None):
            merged.scores[row].setdefault(candidate, score)

    def _row(self, passage: Named) -> int:
        row = self._merged.candidates.get(passage.text)
        if row is not None:
            return row
        name = passage.id or self._free("passage", f"d{len(self._merged.candidates)}")
        self._texts["passage", name] = passage.text
        return self._merged.candidate(passage.text, name)

    def _free(self, kind: str, name: str) -> str:
        """Returns the name, with underscores appended if it is the id of another text."""
        while (kind, name) in self._texts:
            name += "_"
        return name

    def records(self, path: str, invalid: text_files.InvalidRows | None = None) -> RetrievalSet:
        """Returns the retrieval set; `hard_negatives` is None if no row has any.

        Raises:
          EndxError: there are no questions, or a row is invalid and `invalid` does not skip it.
        """
        invalid = invalid or text_files.InvalidRows(path)
        if not self._merged.questions:
            wrong = f"{counted(len(self._wrong_only), 'row')} with wrong ones" if self._wrong_only else ""
            note = "".join(f"; {part}" for part in (invalid.report or wrong,) if part)
            raise EndxError(f"{path}: no questions with a right passage in the file{note}")
        used = [(row, where) for row, where in self._wrong_only if row.question.text in self._merged.questions]
        if self._wrong_only:
            rows = f"{len(used):,} of {counted(len(self._wrong_only), 'row')}"
            text_files.LOG.warning("%s: wrong answers of %s are hard negatives, for data.hard_negatives", path, rows)
        for row, where in used:
            with invalid.row():
                self._store(row, where)
        return self._merged.build()


def parse_dpr(row: dict, where: str) -> Example:
    """Parses a row of DPR's training files."""
    question = json_files.text_at(row, "question", where)
    right = _passages(row, "positive_ctxs", where, ("passage_id", "psg_id"))
    wrong = _passages(row, "hard_negative_ctxs", where, ("passage_id", "psg_id"), [])
    return Example(Named(question), _filled(right), _filled(wrong))


def parse_tevatron(row: dict, where: str) -> Example:
    """Parses a row of Tevatron's training files."""
    name = json_files.identifier_at(row, "query_id", where, "")
    query = json_files.text_at(row, "query", where)
    right = _passages(row, "positive_passages", where, ("docid",))
    wrong = _passages(row, "negative_passages", where, ("docid",), [])
    return _example(Named(query, name), right, wrong, row, where)


def parse_flag_embedding(row: dict, where: str) -> Example:
    """Parses a row of FlagEmbedding's training files."""
    right, wrong = (_texts(json_files.list_at(row, key, where, []), f"{where}: {key!r}") for key in ("pos", "neg"))
    return _example(Named(json_files.text_at(row, "query", where)), right, wrong, row, where)


def _example(question: Named, right: list[Named], wrong: list[Named], row: dict, where: str) -> Example:
    """Returns an example without empty passages, with the scores of the others if the row has any."""
    sides = {"pos_scores": right, "neg_scores": wrong}
    columns = {key: row.get(key) for key in sides}
    scores: list[float] | None = None
    if any(value is not None for value in columns.values()):
        scores = []
        for key, passages in sides.items():
            if columns[key] is None and passages:
                raise EndxError(f"{where}: {key!r} is missing, but the row has other scores")
            values = json_files.as_list([] if columns[key] is None else columns[key], f"{where}: {key!r}")
            if len(values) != len(passages):
                raise EndxError(f"{where}: {key!r} has {len(values)} scores for {len(passages)} passages")
            numbers = [json_files.number(score, f"{where}: {key}[{n}]") for n, score in enumerate(values)]
            for n, score in enumerate(numbers):
                if not abs(score) <= MOST_SCORE:
                    raise EndxError(f"{where}: {key}[{n}] is {score}; it must be a finite number of float32")
            scores += [score for score, passage in zip(numbers, passages, strict=True) if passage.text]
    return Example(question, _filled(right), _filled(wrong), scores)


def _filled(passages: list[Named]) -> list[Named]:
    return [passage for passage in passages if passage.text]


def _passages(row: dict, key: str, where: str, id_keys: tuple[str, ...], *default: list) -> list[Named]:
    """Returns the passages of the list at a key, which may be absent if there is a default; keeps empty passages."""
    passages = []
    for place, passage in enumerate(json_files.list_at(row, key, where, *default)):
        at = f"{where}: {key}[{place}]"
        title = json_files.value(passage, "title", at, "")
        title = "" if json_files.is_missing(title) else json_files.as_text(title, f"{at}: 'title'", may_be_empty=True)
        text = json_files.text_at(passage, "text", at, may_be_empty=True)
        name = next((passage[identifier] for identifier in id_keys if identifier in passage), "")
        named = Named(f"{title} {text}".strip(), json_files.identifier(name, f"{at}: the id")) if text else Named("")
        passages.append(named)
    return passages


def _texts(value: object, where: str) -> list[Named]:
    """Returns the texts of a string or a list of strings."""
    items = {f"{where}, item {n}": item for n, item in enumerate(value)} if isinstance(value, list) else {where: value}
    texts = {at: "" if json_files.is_missing(item) else item for at, item in items.items()}
    return [Named(json_files.as_text(text, at, may_be_empty=True)) for at, text in texts.items()]


class Columns(NamedTuple):
    """Names of the columns of question, answer, hard negatives and labels."""

    question: str
    answer: str
    negatives: tuple[str, ...]
    labels: tuple[str, ...]


class ColumnParser:
    """Parser of rows with a question and an answer each.

    A question may have several rows with different answers. Questions and answers may be lists of texts, also written
    as one text (`columns.strings`): each is an answer of each question, and empty ones are ignored. Columns named
    `negative`, `negative_1`, ... hold hard negatives, each a text or a list of texts. An answer with a 0 in one of the
    columns `LABELS` is a hard negative of its question. Empty hard negatives and other columns are ignored. A text may
    be a chat with one message; each reply of a longer chat is the answer of the message before it (`columns.turns`).
    """

    def __init__(self, names: tuple[str, str] = (QUESTION, ANSWER)):
        """Stores the names of the columns of question and answer; the defaults also match the names of other tools."""
        self._names = names
        self._known: dict[tuple[str, ...], Columns] = {}

    def choose(self, row: Iterable[str], where: str) -> Columns:
        """Returns the columns of a row with these keys; raises EndxError if one is missing, or there are several."""
        keys = tuple(name for name in row if not (isinstance(row, dict) and isinstance(row[name], dict)))
        if keys not in self._known:
            self._known.clear()  # nearly all rows have the keys of the previous row
            sides = zip(self._names, (QUESTION, ANSWER), strict=True)
            question, answer = (columns.choose(name, default, row, where) for name, default in sides)
            labels = tuple(name for name in keys if name.casefold() in JUDGING and name not in (question, answer))
            negatives = tuple(name for name in keys if NEGATIVE.fullmatch(name))
            self._known[keys] = Columns(question, answer, negatives, labels)
        return self._known[keys]

    def labelled(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows as `asked` returns them, and logs unused columns of 0 and 1, and chats of several turns.

        Raises:
          EndxError: a label varies and is not 0 or 1, even if invalid rows are skipped.
        """
        first: dict[str, str] = {}
        flags: dict[str, set[bool]] = {}  # values of unused columns that hold only 0 and 1
        count, where, chats = 0, "", 0
        for count, (number, where, row) in enumerate(rows, start=1):
            asked = self.asked(row, where)
            chats += len(asked) > 1 and not row.keys() <= asked[0].keys()
            labels: tuple[str, ...] = ()
            with contextlib.suppress(EndxError):  # parsing the row raises the same error
                labels = self.choose(asked[0] if asked else row, where).labels
            for name in labels:
                value = str(row[name]).strip()
                before = first.setdefault(name, value)
                fits = LABEL.fullmatch(value) and LABEL.fullmatch(before)
                numbers = NUMBER.fullmatch(value) and NUMBER.fullmatch(before)
                flagged = LABEL.fullmatch(value) or LABEL.fullmatch(before)  # 0 among texts would be a wrong answer
                is_text = name.casefold() in FLAGS and not (numbers or flagged)
                if value != before and not (fits or is_text):
                    raise EndxError(
                        f"{where}: column {name!r} is {value[:40]!r}, and {before[:40]!r} above: only 1 (right) and 0 "
                        "(wrong) say which answers are right; write these, or leave out the wrong rows and the column"
                    )
            if count == 1:
                flags = {name: set() for name in row.keys() - {*labels, *self._names}}
            for name in [*flags]:
                flag = LABEL.fullmatch(value := str(row.get(name)).strip())
                if flag:
                    flags[name].add(bool(flag["right"]))
                elif value not in ("", "None", "nan"):
                    del flags[name]
            for part in asked:
                yield number, where, part
        file = where.rpartition(", ")[0] or where
        if chats:
            said = "each is paired with the reply after it, without what was said before"
            text_files.LOG.warning("%s: %s with several questions: %s", file, counted(chats, "chat"), said)
        unused = sorted(name for name, values in flags.items() if len(values) == 2)
        if unused and count > 2:
            text_files.LOG.warning(
                "%s: only 0 and 1 (or true and false) in %s, which is not used; if they say which answers are right, "
                "name the column `label`",
                file,
                json_files.format_names(unused),
            )

    def asked(self, row: dict, where: str) -> list[dict]:
        """Returns the row, read by `columns.readable`, once for each question of a list or reply of a chat."""
        cells = {name: columns.readable(value) for name, value in row.items()}
        try:
            name = self.choose(cells, where).question
        except EndxError:  # parsing the row raises the same error
            return columns.turns(row, *self._names) or [cells]
        texts = cells[name]
        if not isinstance(texts, list):
            return [cells]
        return [cells | {name: text} for text in texts if str(text or "").strip()]

    def __call__(self, row: dict, where: str) -> Example:
        """Parses a row that `asked` returned."""
        used = self.choose(row, where)
        for name in (used.question, used.answer, *used.negatives):
            columns.check_list(row[name], f"{where}: {name!r}")
        question, answers = json_files.text_at(row, used.question, where), row[used.answer]
        if not isinstance(answers, list):
            answers = [json_files.as_text(answers, f"{where}: {used.answer!r}")]
        right = _filled(_texts(answers, f"{where}: {used.answer!r}"))
        wrong = [text for name in used.negatives for text in _texts(row.get(name), f"{where}: {name!r}")]
        labels = (LABEL.fullmatch(str(row[name]).strip()) for name in used.labels)
        if any(label and not label["right"] for label in labels):
            return Example(Named(question), [], [*right, *_filled(wrong)])
        return Example(Named(question), right, _filled(wrong))
