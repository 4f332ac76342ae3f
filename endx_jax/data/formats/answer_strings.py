"""Questions with answer strings and without passages (NQ-open, DPR's question files), for the evaluation of an index.

Answer strings are matched as in DPR and OpenNQ (Karpukhin et al. 2020; Dong et al. 2022), after `SimpleTokenizer` and
`dpr/data/qa_validation.py` of facebookresearch/DPR. Tokens are runs of letters, digits and marks in NFD text, and other
single characters except white space and control characters. They are compared in lower case. A passage contains an
answer if it contains the answer's tokens in sequence.
"""

import unicodedata
from collections.abc import Iterable, Iterator

from endx_jax import json_files
from endx_jax.data.formats import columns, row_files, tables, text_files
from endx_jax.data.formats.format import Format, Place, ReadOptions
from endx_jax.data.formats.text_files import InvalidRows
from endx_jax.data.sets.examples import Example
from endx_jax.errors import EndxError

INSTEAD = "`endx evaluate --index=FILE --data=...` looks for passages that contain them"


def read_answered(path: str) -> list[Example]:
    """Reads questions with the strings that answer them, with the ids `q0`, `q1`, ... in file order.

    Known formats are NQ-open's `.jsonl`, a JSON list or an Arrow table of the same columns (`question`, and a list in
    `answer` or `answers`), and DPR's question files, `.csv` or `.tsv`: a question, a tab and a list of strings in
    Python's notation. Text files may end in `.gz`.

    Raises:
      EndxError: the file is broken, named by line, or a question has no answer.
    """
    if text_files.uncompressed(path).endswith((".csv", ".tsv")):
        rows = _lines(path)
    else:
        rows = tables.examples(Place(path), ReadOptions(), InvalidRows(path))
    questions = []
    for number, (where, example) in enumerate(rows):
        if not example.right:
            raise EndxError(f"{where}: the question has no answer")
        questions.append(example._replace(id=f"q{number}"))
    return questions


def _lines(path: str) -> Iterator[tuple[str, Example]]:
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
        yield where, Example(json_files.as_text(row[0], f"{where}: the question"), answers)


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


def _is_answers_line(line: str) -> bool:
    """Returns true for a line of DPR's question files: a question, a tab and a list in Python's notation."""
    _, tab, answers = line.partition("\t")
    return bool(tab) and "\t" not in answers and answers.lstrip('"').startswith("[")


def _matches(place: Place) -> bool:
    if place.ending in (".csv", ".tsv"):
        return _is_answers_line(text_files.first_text_line(place.files[0]))
    return "question" in place.row and any(isinstance(place.row.get(key), list) for key in ("answer", "answers"))


def _examples(place: Place, options: ReadOptions, invalid: InvalidRows) -> Iterator[tuple[str, Example]]:
    if place.ending in (".csv", ".tsv"):
        raise EndxError(f"{place.path} holds questions with lists of answer strings and no passages: {INSTEAD}")
    answers = "each text of a list of answers is a right answer of its question"
    text_files.LOG.warning("%s: %s; %s", place.path, answers, INSTEAD)
    yield from tables.examples(place, options, invalid)


ANSWERS = Format("answers", _matches, examples=_examples, documents=tables.documents)
