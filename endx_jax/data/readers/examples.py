"""Rows of a question, right passages and hard negatives: named columns, and the training files of other tools.

- DPR (Karpukhin et al. 2020): `question`, `positive_ctxs` and `hard_negative_ctxs`, each a list of `title`, `text` and
  `passage_id` or `psg_id`. `negative_ctxs`, which are drawn at random, are ignored. Questions have no ids.
- Tevatron (Gao et al. 2022): `query_id`, `query`, `positive_passages` and optional `negative_passages`, each a list of
  `docid`, `title` and `text`.
- FlagEmbedding (the BGE models): `query`, a list of texts `pos` and an optional one `neg`. Teacher scores
  (`pos_scores`, `neg_scores`), `prompt` and `type` are ignored.

A passage is its title, a space and its text. Empty passages, and questions without a right passage, are ignored.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.data.readers.row_files import Row, objects, rows
from endx_jax.data.readers.text_files import InvalidRows
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError

QUESTION, ANSWER = "question", "answer"
# Column names of other tools, tried if no column was named and none has the name above.
QUESTIONS = ("query", "anchor")
ANSWERS = ("positive", "passage", "document", "response")
# Columns of hard negatives, as in sentence-transformers: `negative`, `negative_1`, `negative_2`, ...
NEGATIVE = re.compile(r"(hard_)?negative(_\d+)?", re.IGNORECASE)


class Named(NamedTuple):
    """Text with its id in the file; the id is empty if the file has none."""

    text: str
    id: str = ""


class Example(NamedTuple):
    """Contents of one row."""

    question: Named
    right: list[Named]
    wrong: list[Named]


# (values of a row, its place for messages) to its contents.
Parser = Callable[[dict, str], Example]


class ExampleSet:
    """Collects examples into a retrieval set; equal texts are merged under the id of the first one.

    Questions without an id are called `q0`, `q1`, ..., and passages `d0`, `d1`, ..., in order.
    """

    def __init__(self):
        self._questions: dict[str, str] = {}
        self._passages: dict[str, int] = {}
        self._passage_ids: list[str] = []
        self._right: dict[str, set[int]] = {}
        self._wrong: dict[str, set[int]] = {}
        self._texts: dict[tuple[str, str], str] = {}

    def add(self, question: Named, right: list[Named], wrong: list[Named], where: str) -> None:
        """Adds an example; one without a right passage is ignored, since it can be neither trained on nor evaluated.

        Args:
          question: the question.
          right: passages that answer it.
          wrong: hard negatives.
          where: place of the row, for messages.

        Raises:
          EndxError: an id stands for two texts.
        """
        if not right:
            return
        name = question.id or self._questions.get(question.text) or self._free("question", f"q{len(self._questions)}")
        # All ids are checked before anything is stored, so that a refused row leaves nothing behind.
        texts = {("question", name): question.text}
        for passage in (*right, *wrong):
            if passage.id and texts.setdefault(("passage", passage.id), passage.text) != passage.text:
                raise EndxError(f"{where}: the passage id {passage.id[:100]!r} stands for two texts")
        for (kind, identifier), text in texts.items():
            if self._texts.get((kind, identifier), text) != text:
                raise EndxError(f"{where}: the {kind} id {identifier[:100]!r} stands for two texts")
        self._texts.update(texts)
        self._questions.setdefault(question.text, name)
        self._right.setdefault(question.text, set()).update(map(self._row, right))
        self._wrong.setdefault(question.text, set()).update(map(self._row, wrong))

    def _row(self, passage: Named) -> int:
        row = self._passages.setdefault(passage.text, len(self._passages))
        if row == len(self._passage_ids):
            name = passage.id or self._free("passage", f"d{row}")
            self._texts["passage", name] = passage.text
            self._passage_ids.append(name)
        return row

    def _free(self, kind: str, name: str) -> str:
        """Returns the name, lengthened if the file uses it for another text."""
        while (kind, name) in self._texts:
            name += "_"
        return name

    def records(self, path: str, note: str = "") -> RetrievalSet:
        """Returns the retrieval set; `hard_negatives` is None if no row has any.

        Raises:
          EndxError: there are no questions; `note` ends the message.
        """
        if not self._questions:
            raise EndxError(f"{path}: no questions with a right passage in the file" + (note and f"; {note}"))
        wrong = [self._wrong[question] - self._right[question] for question in self._questions]
        return RetrievalSet(
            questions=tuple(self._questions),
            candidates=tuple(self._passages),
            qrels=tuple(tuple(sorted(self._right[question])) for question in self._questions),
            question_ids=tuple(self._questions.values()),
            candidate_ids=tuple(self._passage_ids),
            hard_negatives=tuple(tuple(sorted(rows)) for rows in wrong) if any(wrong) else None,
        )


def _collect(path: str, found: Iterable[Row], parse: Parser, invalid: InvalidRows) -> RetrievalSet:
    examples = ExampleSet()
    for _, where, row in found:
        with invalid.row():
            examples.add(*parse(row, where), where)
    invalid.log()
    return examples.records(path, invalid.report)


def read_rows(path: str, parse: Parser, *, split: str | None = None, skip_invalid: bool = False) -> RetrievalSet:
    """Reads a training file of another tool.

    Args:
      path: what `row_files.objects` reads.
      parse: parser of the tool's rows, such as `parse_dpr`.
      split: split of a `save_to_disk` folder.
      skip_invalid: whether to skip invalid rows.

    Raises:
      EndxError: a row is invalid, named by line, or no row has a right passage.
    """
    invalid = InvalidRows(path, skip=skip_invalid)
    return _collect(path, objects(path, invalid, split=split), parse, invalid)


def parse_dpr(row: dict, where: str) -> Example:
    """Parses a row of DPR's training files."""
    question = json_files.text_at(row, "question", where)
    right, wrong = (
        _passages(row, key, where, ("passage_id", "psg_id")) for key in ("positive_ctxs", "hard_negative_ctxs")
    )
    return Example(Named(question), right, wrong)


def parse_tevatron(row: dict, where: str) -> Example:
    """Parses a row of Tevatron's training files."""
    name = json_files.identifier(json_files.value(row, "query_id", where, ""), f"{where}: 'query_id'")
    query = json_files.text_at(row, "query", where)
    right = _passages(row, "positive_passages", where, ("docid",))
    wrong = _passages({"negative_passages": [], **row}, "negative_passages", where, ("docid",))
    return Example(Named(query, name), right, wrong)


def parse_flag_embedding(row: dict, where: str) -> Example:
    """Parses a row of FlagEmbedding's training files."""
    right, wrong = (_texts(json_files.list_at(row, key, where, []), f"{where}: {key!r}") for key in ("pos", "neg"))
    return Example(Named(json_files.text_at(row, "query", where)), right, wrong)


def _passages(row: dict, key: str, where: str, id_keys: tuple[str, ...]) -> list[Named]:
    found = []
    for place, passage in enumerate(json_files.list_at(row, key, where)):
        at = f"{where}: {key}[{place}]"
        title = json_files.text(json_files.value(passage, "title", at, "") or "", f"{at}: 'title'", may_be_empty=True)
        text = json_files.text_at(passage, "text", at, may_be_empty=True)
        name = next((passage[identifier] for identifier in id_keys if identifier in passage), "")
        if text:
            found.append(Named(f"{title} {text}".strip(), json_files.identifier(name, f"{at}: the id")))
    return found


def _texts(value: object, where: str) -> list[Named]:
    """Returns a text or a list of texts, without empty ones."""
    if not isinstance(value, list):
        found = "" if value is None else json_files.text(value, where, may_be_empty=True)
        return [Named(found)] if found else []
    texts = (json_files.text(item, f"{where}, item {n}", may_be_empty=True) for n, item in enumerate(value))
    return [Named(text) for text in texts if text]


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of the columns of a file by their use."""

    question: str
    answer: str
    negatives: tuple[str, ...]

    @classmethod
    def choose(cls, names: tuple[str, str], known: list[str], where: str) -> "Columns":
        """Chooses among the columns `known`: those called `names`, or those with the names of other tools.

        Raises:
          EndxError: there is no column, or more than one, for the question or the answer.
        """
        question = _choose(names[0], QUESTION, QUESTIONS, known, where)
        answer = _choose(names[1], ANSWER, ANSWERS, known, where)
        return cls(question, answer, tuple(name for name in known if NEGATIVE.fullmatch(name)))


def called(name: str, known: Iterable[str]) -> list[str]:
    """Returns the columns with exactly this name or, if there are none, those that have it in another case."""
    known = list(known)
    return [other for other in known if other == name] or [
        other for other in known if other.casefold() == name.casefold()
    ]


def _choose(name: str, default: str, others: Iterable[str], known: list[str], where: str) -> str:
    found = called(name, known)
    if not found and name == default:
        found = [column for other in others for column in called(other, known)]
    if len(found) == 1:
        return found[0]
    if len(set(found)) > 1:
        choice = " or ".join(map(repr, found))
        raise EndxError(f"{where}: the {default} could be {choice}; name it with data.{default}_column")
    raise EndxError(
        f"{where}: {'more than one' if found else 'no'} column {(found or [name])[0]!r} among "
        f"{json_files.names(known)}; name yours with data.question_column and data.answer_column"
    )


def read_columns(
    path: str, names: tuple[str, str] = (QUESTION, ANSWER), *, split: str | None = None, skip_invalid: bool = False
) -> RetrievalSet:
    """Reads a table with a question and an answer in each row.

    All right answers of a question are kept. Columns called `negative`, `negative_1`, ... hold hard negatives, each a
    text, in JSON and Arrow also a list of texts; empty ones are ignored, and so are further columns.

    Args:
      path: what `row_files.rows` reads.
      names: columns of question and answer; if left at `question` and `answer`, other tools' names are found too.
      split: split of a `save_to_disk` folder.
      skip_invalid: whether to skip invalid rows.

    Raises:
      EndxError: a column is missing, or a row is invalid, named by line.
    """
    known: dict[tuple[str, ...], Columns] = {}

    def choose(row: Iterable[str], where: str) -> Columns:
        keys = tuple(row)
        if keys not in known:
            known.clear()  # nearly all rows have the keys of the row before
            known[keys] = Columns.choose(names, list(keys), where)
        return known[keys]

    def parse(row: dict, where: str) -> Example:
        columns = choose(row, where)
        question, answer = (json_files.text_at(row, name, where) for name in (columns.question, columns.answer))
        wrong = [text for name in columns.negatives for text in _texts(row.get(name), f"{where}: {name!r}")]
        return Example(Named(question), [Named(answer)], wrong)

    invalid = InvalidRows(path, skip=skip_invalid)
    return _collect(path, rows(path, choose, invalid, split=split), parse, invalid)
