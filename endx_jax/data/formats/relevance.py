"""Questions for the evaluation of an index, with the ids of their right documents or with answer strings.

Answer strings are matched as in DPR and OpenNQ (Karpukhin et al. 2020; Dong et al. 2022), after `SimpleTokenizer` and
`dpr/data/qa_validation.py` of facebookresearch/DPR. Tokens are runs of letters, digits and marks in NFD text, and other
single characters except white space and control characters. They are compared in lower case. A passage contains an
answer if it contains the answer's tokens in sequence.
"""

import dataclasses
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping

from endx_jax import json_files
from endx_jax.data.formats import beir, columns, msmarco, row_files, text_files
from endx_jax.data.formats.registry import BEIR, COLUMNS, MSMARCO, detect_format, row_examples
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.errors import EndxError


@dataclasses.dataclass(frozen=True)
class Judgements:
    """Questions with the ids of their right documents.

    Attributes:
      ids: Q external ids.
      texts: Q questions.
      right: distinct ids of each question's right documents, at least one, with their grades.
      excluded: ids of the documents that are not ranked for each question, if they exist.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    right: tuple[Mapping[str, int], ...]
    excluded: tuple[tuple[str, ...], ...]

    @classmethod
    def from_records(cls, records: RetrievalSet) -> "Judgements":
        """Returns the questions of a set whose candidate ids are the document ids of an index."""
        names = records.candidate_ids
        graded = records.grades or [dict.fromkeys(rows, 1) for rows in records.qrels]
        right = tuple({names[row]: grade for row, grade in grades.items()} for grades in graded)
        excluded = tuple(tuple(names[row] for row in rows) for rows in records.excluded or [()] * len(right))
        return cls(records.question_ids, records.questions, right, excluded)


# Readers of judgements without their corpus, by format.
JUDGED: dict[str, Callable[[str, str | None], tuple[Mapping[str, str], Mapping[str, Mapping[str, int]]]]] = {
    BEIR: beir.beir_judgements,
    MSMARCO: msmarco.msmarco_judgements,
}


def read_judged(folder: str, split: str | None) -> Judgements:
    """Reads the judged questions of a BEIR or MS MARCO folder, without its corpus.

    Questions and documents with equal text are not merged, as in other tools that rank ids. In BEIR folders the
    document with a question's own id is excluded, as by `beir.read`.

    Raises:
      EndxError: there is no such split, a line is broken, or a judged query is missing.
    """
    kind = detect_format(folder)
    queries, right = JUDGED[kind](folder, split)
    excluded = tuple((name,) if kind == BEIR and name not in grades else () for name, grades in right.items())
    return Judgements(tuple(right), tuple(queries[name] for name in right), tuple(right.values()), excluded)


@dataclasses.dataclass(frozen=True)
class QuestionWithAnswers:
    """Question with answer strings.

    Attributes:
      id: `q0`, `q1`, ... in file order.
      text: the question.
      answers: strings, each of which answers the question.
    """

    id: str
    text: str
    answers: tuple[str, ...]


def read_answered(path: str) -> list[QuestionWithAnswers]:
    """Reads questions with answer strings.

    Known formats are NQ-open's `.jsonl`, a JSON list or an Arrow table of the same columns (`question`, and a list in
    `answer` or `answers`), and DPR's question files, `.csv` or `.tsv`: a question, a tab and a list of strings in
    Python's notation. Text files may end in `.gz`.

    Raises:
      EndxError: the file is broken, named by line, or a question has no answer.
    """
    rows = _lines(path) if text_files.uncompressed(path).endswith((".csv", ".tsv")) else _objects(path)
    questions = []
    for number, (where, question, answers) in enumerate(rows):
        if not answers:
            raise EndxError(f"{where}: the question has no answer")
        questions.append(QuestionWithAnswers(f"q{number}", question, tuple(answers)))
    return questions


Row = tuple[str, str, list[str]]


def _objects(path: str) -> Iterator[Row]:
    names = columns.QUESTION, columns.ANSWER
    for where, example in row_examples(path, COLUMNS, names, text_files.InvalidRows(path)):
        yield where, example.question.text, [answer.text for answer in example.right]


def _lines(path: str) -> Iterator[Row]:
    for number, row in row_files.fields_of(path, "\t", strict=False):  # as DPR reads them
        where = f"{path}, line {number}"
        if len(row) != 2:
            raise EndxError(
                f"{where}: {len(row)} tab-separated columns; each line must have a question and its answers"
            )
        answers = columns.strings(row[1])
        if answers is None:
            most = f"of at most {columns.LONGEST_LIST:,} characters"
            raise EndxError(f"{where}: the answers must be a list of strings {most}, such as ['one', 'two']")
        for answer in answers:
            json_files.as_text(answer, f"{where}: an answer", may_be_empty=True)
        yield where, json_files.as_text(row[0], f"{where}: the question"), answers


# Separator of tokens in one string; no token contains it, as it is a control character.
_SEPARATOR = "\0"


def tokens(text: str) -> list[str]:
    """Returns the tokens of a text in lower case."""
    import regex

    words = regex.findall(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]", unicodedata.normalize("NFD", text))
    return [token.lower() for token in words]


def searchable(text: str) -> str:
    """Returns the tokens of a text as one string for `contains_answer`."""
    return _SEPARATOR + "".join(token + _SEPARATOR for token in tokens(text))


def contains_answer(passage: str, answers: Iterable[str]) -> bool:
    """Returns true if a passage contains one of the answers, all converted by `searchable`.

    An answer without tokens is in no passage; DPR finds it in every passage.
    """
    return any(len(answer) > len(_SEPARATOR) and answer in passage for answer in answers)
