"""Reads question-answer data of any known format: what is at the path decides which."""

import functools
import os
from collections.abc import Callable

from endx_jax.data.readers import beir, columns, files, squad
from endx_jax.data.records import RetrievalSet

# What a file's name ends in, before an optional .gz, and who reads it. A folder is a BEIR data set.
FORMATS: dict[str, Callable[[str, tuple[str, str]], RetrievalSet]] = {
    ".json": lambda path, names: squad.read(path),
    ".jsonl": columns.read_jsonl,
    ".csv": functools.partial(columns.read_table, delimiter=","),
    ".tsv": functools.partial(columns.read_table, delimiter="\t"),
}


def read(
    path: str | os.PathLike,
    *,
    split: str | None = None,
    question_column: str = "question",
    answer_column: str = "answer",
) -> RetrievalSet:
    """Reads the data set at `path`.

    Known are SQuAD 1.1 and 2.0 (`.json`, a paragraph a candidate), a question and an answer a row (`.jsonl`, `.csv`,
    `.tsv` with a header line), each also with `.gz`, and BEIR folders. All are UTF-8; texts lose white space at their
    ends and nothing else, and equal texts are merged.

    Args:
      path: a file or a folder.
      split: which judgements of a BEIR folder; may be None where it has one file of them. Other formats have no splits
        and ignore it.
      question_column: the column or key of the question in `.jsonl`, `.csv` and `.tsv`; other formats ignore it.
      answer_column: the same for the answer.

    Raises:
      EndxError: nothing readable is there; the message names the file, the place in it, and the reason.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        return beir.read(path, split)
    return FORMATS[files.ending(path, FORMATS)](path, (question_column, answer_column))
