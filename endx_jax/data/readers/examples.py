"""Reader of rows with a question, right passages and hard negatives: tables and the training files of other tools.

- DPR (Karpukhin et al. 2020): `question`, `positive_ctxs` and `hard_negative_ctxs`, each a list of `title`, `text` and
  `passage_id` or `psg_id`. `negative_ctxs`, which are drawn at random, are ignored. Questions have no ids.
- Tevatron (Gao et al. 2022): `query_id`, `query`, `positive_passages` and optional `negative_passages`, each a list of
  `docid`, `title` and `text`.
- FlagEmbedding (the BGE models): `query`, a list of texts `pos` and an optional one `neg`. `prompt` and `type` are
  ignored.

Rows of Tevatron and FlagEmbedding may have a teacher's scores, `pos_scores` and `neg_scores`, lists of as many numbers
as there are right passages and negatives. Then all rows must have them.

A passage is its title, a space and its text. Empty passages, and questions without a right passage, are ignored.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.data.readers import text_files
from endx_jax.data.readers.row_files import MOST_SCORE, Row
from endx_jax.data.sets.records import RetrievalSet, RetrievalSetBuilder
from endx_jax.errors import EndxError

QUESTION, ANSWER = "question", "answer"
# Column names of other tools, tried if the setting has its default and there is no such column.
QUESTIONS = ("query", "anchor")
ANSWERS = ("positive", "passage", "document", "response")
# Names that are tried next; in JSON and Arrow such a column may hold a list of texts, as in files of chatbot intents.
QUESTION_LISTS = ("questions", "patterns")
ANSWER_LISTS = ("answers", "responses")
# Names that are tried last: short ones, and those of other languages.
QUESTION_WORDS = (
    "q", "prompt", "instruction", "frage", "pregunta", "pergunta", "domanda", "vraag", "pytanie", "otázka", "întrebare",
    "intrebare", "soru", "вопрос", "питання", "câu hỏi", "pertanyaan", "سؤال", "السؤال", "שאלה", "प्रश्न", "คำถาม",
    "问题", "問題", "質問", "질문",
)  # fmt: skip
ANSWER_WORDS = (
    "a", "completion", "output", "antwort", "respuesta", "resposta", "risposta", "réponse", "reponse", "antwoord",
    "odpowiedź", "odpověď", "răspuns", "raspuns", "cevap", "yanıt", "ответ", "відповідь", "câu trả lời", "trả lời",
    "jawaban", "پاسخ", "جواب", "الجواب", "תשובה", "उत्तर", "คำตอบ", "答案", "回答", "答え", "답변", "답",
)  # fmt: skip
# Columns of hard negatives, as in sentence-transformers: `negative`, `negative_1`, `negative_2`, ...
NEGATIVE = re.compile(r"(hard_)?negative(_\d+)?", re.IGNORECASE)
# Columns that say if the answer is right, and their values for right and wrong ones.
LABELS = ("label", "score", "similarity")
# Further names of such columns, which are used if their values are numbers or truth values.
_JUDGED = ("correct", "duplicate", "match", "relevance", "relevant", "similar")
FLAGS = (*_JUDGED, *(f"is_{name}" for name in _JUDGED), "is_answer", "is_positive", "labels", "target")
JUDGING = frozenset((*LABELS, *FLAGS))
LONGEST_NAME = 40  # a longer name of a column is a text: the file has no header
NUMBER = re.compile(r"[+-]?[\d.]+")
LABEL = re.compile(r"(?P<right>1(\.0*)?|true)|0(\.0*)?|false", re.IGNORECASE)


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

    def records(self, path: str, note: str = "") -> RetrievalSet:
        """Returns the retrieval set; `hard_negatives` is None if no row has any.

        Raises:
          EndxError: there are no questions; the message ends with `note`.
        """
        if not self._merged.questions:
            if self._wrong_only and not note:
                note = f"{len(self._wrong_only):,} rows have wrong ones"
            raise EndxError(f"{path}: no questions with a right passage in the file" + (note and f"; {note}"))
        if self._wrong_only:
            text_files.LOG.warning(
                "%s: wrong answers of %d rows are hard negatives, for data.hard_negatives", path, len(self._wrong_only)
            )
        for example, where in self._wrong_only:
            if example.question.text in self._merged.questions:
                self._store(example, where)
        return self._merged.build()


def parse_dpr(row: dict, where: str) -> Example:
    """Parses a row of DPR's training files."""
    question = json_files.text_at(row, "question", where)
    right, wrong = (
        _passages(row, key, where, ("passage_id", "psg_id")) for key in ("positive_ctxs", "hard_negative_ctxs")
    )
    return Example(Named(question), _filled(right), _filled(wrong))


def parse_tevatron(row: dict, where: str) -> Example:
    """Parses a row of Tevatron's training files."""
    name = json_files.identifier_at(row, "query_id", where, "")
    query = json_files.text_at(row, "query", where)
    right = _passages(row, "positive_passages", where, ("docid",))
    wrong = _passages({"negative_passages": [], **row}, "negative_passages", where, ("docid",))
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


def _passages(row: dict, key: str, where: str, id_keys: tuple[str, ...]) -> list[Named]:
    """Returns the passages of a list; the text of empty ones is empty."""
    passages = []
    for place, passage in enumerate(json_files.list_at(row, key, where)):
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


def called(name: str, columns: Iterable[str]) -> list[str]:
    """Returns the columns with this name or, if there are none, those that differ in case or `_` at their ends."""
    columns = list(columns)
    return [other for other in columns if other == name] or [
        other for other in columns if other.casefold().strip("_ ") == name.casefold().strip("_ ")
    ]


def _choose(name: str, default: str, others: Iterable[Iterable[str]], columns: list[str], where: str) -> str:
    matches = called(name, columns)
    for names in others if name == default else ():
        matches = matches or [column for other in names for column in called(other, columns)]
    if len(matches) == 1:
        return matches[0]
    if len(set(matches)) > 1:
        choice = " or ".join(map(repr, matches))
        raise EndxError(f"{where}: the {default} could be {choice}; name it with data.{default}_column")
    unnamed = not matches and any(not 0 < len(column) <= LONGEST_NAME for column in columns)
    header = "; if this line is a row, add a line of names above it, such as question and answer" * unnamed
    raise EndxError(
        f"{where}: {'more than one' if matches else 'no'} column {(matches or [name])[0]!r} among "
        f"{json_files.format_names(columns)}; name yours with data.question_column and data.answer_column{header}"
    )


class ColumnParser:
    """Parser of rows with a question and an answer each.

    A question may have several rows with different answers. In JSON and Arrow, questions and answers may be lists of
    texts, each an answer of each question; empty ones are ignored. Columns named `negative`, `negative_1`, ... hold
    hard negatives, each a text, or a list of texts as well. An answer with a 0 in one of the columns `LABELS` is a hard
    negative of its question. Empty hard negatives and other columns are ignored.
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
            question = _choose(self._names[0], QUESTION, (QUESTIONS, QUESTION_LISTS, QUESTION_WORDS), list(keys), where)
            answer = _choose(self._names[1], ANSWER, (ANSWERS, ANSWER_LISTS, ANSWER_WORDS), list(keys), where)
            labels = tuple(name for name in keys if name.casefold() in JUDGING and name not in (question, answer))
            negatives = tuple(name for name in keys if NEGATIVE.fullmatch(name))
            self._known[keys] = Columns(question, answer, negatives, labels)
        return self._known[keys]

    def labelled(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yields the rows, one for each question of a list, and logs columns of 0 and 1 that are not used.

        Raises:
          EndxError: a label varies and is not 0 or 1, even if invalid rows are skipped.
        """
        first: dict[str, str] = {}
        flags: dict[str, set[bool]] = {}  # values of unused columns that hold only 0 and 1
        count, where = 0, ""
        for count, (number, where, row) in enumerate(rows, start=1):
            labels = [name for name in row if name.casefold() in JUDGING and name not in self._names]
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
            for asked in self.asked(row, where):
                yield number, where, asked
        unused = sorted(name for name, values in flags.items() if len(values) == 2)
        if unused and count > 2:
            text_files.LOG.warning(
                "%s: only 0 and 1 (or true and false) in %s, which is not used; if they say which answers are right, "
                "name the column `label`",
                where.rpartition(", ")[0] or where,
                json_files.format_names(unused),
            )

    def asked(self, row: dict, where: str) -> Iterable[dict]:
        """Returns a copy of the row for each question in a list that is not empty; the row itself if it has no list."""
        try:
            name = self.choose(row, where).question
        except EndxError:  # parsing the row raises the same error
            return [row]
        texts = row[name] if isinstance(row[name], list) else None
        return [row] if texts is None else [row | {name: text} for text in texts if str(text or "").strip()]

    def __call__(self, row: dict, where: str) -> Example:
        """Parses a row."""
        columns = self.choose(row, where)
        question, answers = json_files.text_at(row, columns.question, where), row[columns.answer]
        if not isinstance(answers, list):
            answers = [json_files.as_text(answers, f"{where}: {columns.answer!r}")]
        right = _filled(_texts(answers, f"{where}: {columns.answer!r}"))
        wrong = [text for name in columns.negatives for text in _texts(row.get(name), f"{where}: {name!r}")]
        labels = (LABEL.fullmatch(str(row[name]).strip()) for name in columns.labels)
        if any(label and not label["right"] for label in labels):
            return Example(Named(question), [], [*right, *_filled(wrong)])
        return Example(Named(question), right, _filled(wrong))
