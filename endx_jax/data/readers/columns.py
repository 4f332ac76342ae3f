"""One question and one answer a row, perhaps with hard negatives: JSONL, CSV and TSV."""

import csv
import dataclasses
import re
from collections.abc import Iterable, Iterator

from endx_jax.data.readers import files
from endx_jax.data.readers.gathering import Gathering, Named
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError

QUESTION, ANSWER = "question", "answer"
# What other tools call them; looked for where nobody named a column and there is none of the names above.
QUESTIONS = ("query", "anchor")
ANSWERS = ("positive", "passage", "document", "response")
# Columns of hard negatives, as in sentence-transformers: `negative`, `negative_1`, `negative_2`, ...
NEGATIVE = re.compile(r"(hard_)?negative(_\d+)?")

DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns of a file hold what."""

    question: str
    answer: str
    negatives: tuple[str, ...]

    @classmethod
    def choose(cls, names: tuple[str, str], known: list[str], where: str) -> "Columns":
        """The columns called `names` among those `known`, or what other tools call them.

        Raises:
          EndxError: there is none for a side, or more than one.
        """
        question = _choose(names[0], QUESTION, QUESTIONS, known, where)
        answer = _choose(names[1], ANSWER, ANSWERS, known, where)
        return cls(question, answer, tuple(name for name in known if NEGATIVE.fullmatch(name)))


def _choose(name: str, default: str, others: Iterable[str], known: list[str], where: str) -> str:
    found = [other for other in others if other in known] if name == default and name not in known else [name]
    if len(found) > 1:
        raise EndxError(
            f"{where}: the {default} could be {' or '.join(map(repr, found))}; name it with data.{default}_column"
        )
    if len(found) == 1 and known.count(found[0]) == 1:
        return found[0]
    name = found[0] if found else name
    raise EndxError(
        f"{where}: {'no' if name not in known else 'more than one'} column {name!r} among "
        f"{', '.join(map(repr, known))}; name yours with data.question_column and data.answer_column"
    )


def read(path: str, names: tuple[str, str] = (QUESTION, ANSWER)) -> RetrievalSet:
    """Reads `.jsonl`, an object a line, or `.csv` or `.tsv` with a header line that names its columns.

    Every right answer of a question is kept, wherever it stands. Columns called `negative`, `negative_1`, ... hold hard
    negatives, each a text, in JSONL also a list of texts; empty ones are none. Further columns are ignored.

    Args:
      path: the file, perhaps with `.gz`.
      names: of the columns of question and answer; left at `question` and `answer`, other tools' names are found too.

    Raises:
      EndxError: a column is missing, or a row is broken, named by line.
    """
    ending = files.ending(path, (".jsonl", *DELIMITERS))
    rows = _objects(path, names) if ending == ".jsonl" else _table(path, names, DELIMITERS[ending])
    gathering = Gathering()
    for where, columns, row in rows:
        question, answer = (files.text(row[name], f"{where}: {name!r}") for name in (columns.question, columns.answer))
        wrong = [Named(text) for name in columns.negatives for text in _texts(row.get(name), f"{where}: {name!r}")]
        gathering.add(Named(question), [Named(answer)], wrong, where)
    return gathering.records(path)


def _texts(value: object, where: str) -> list[str]:
    """A text or a list of texts, without empty ones."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [text for item in values if (text := files.text(item, where, may_be_empty=True))]


Row = tuple[str, Columns, dict]


def _objects(path: str, names: tuple[str, str]) -> Iterator[Row]:
    for number, row in files.objects(path):
        where = f"{path}, line {number}"
        yield where, Columns.choose(names, list(row), where), row


def _table(path: str, names: tuple[str, str], delimiter: str) -> Iterator[Row]:
    header: list[str] = []
    for number, row in rows(path, delimiter):
        where = f"{path}, line {number}"
        if not header:
            header = [name.strip() for name in row]
            columns = Columns.choose(names, header, where)
        elif len(row) != len(header):
            raise EndxError(f"{where}: {len(row)} columns where the header has {len(header)}")
        else:
            yield where, columns, dict(zip(header, row, strict=True))


def rows(path: str, delimiter: str, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yields (the line on which the row starts, its fields); a quoted field may hold newlines.

    Args:
      path: the file.
      delimiter: between fields.
      strict: whether quotes that are not as `csv` writes them are refused, and not guessed at.
    """
    reader = csv.reader((line for _, line in files.lines(path)), delimiter=delimiter, strict=strict)
    while True:
        start = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            hint = 'a field that holds quotes must be quoted, and its quotes doubled: "say ""hi"""'
            raise EndxError(f"{path}, row from line {start}: {error}; {hint}") from None
        if row:
            yield start, row
