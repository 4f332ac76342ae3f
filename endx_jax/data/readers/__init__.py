"""Reads question-answer data of any known format: what is at the path decides which."""

import functools
import os
from collections.abc import Callable

from endx_jax.data.readers import beir, columns, comprehension, dpr, flag_embedding, msmarco, tevatron
from endx_jax.data.readers.layout import (
    ANSWERS,
    BEIR,
    COLUMNS,
    DPR,
    FLAG_EMBEDDING,
    MRQA,
    MSMARCO,
    MULTIREQA,
    NATURAL_QUESTIONS,
    SQUAD,
    TEVATRON,
    layout,
)
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError

# Who reads a layout that has neither splits nor columns.
FORMATS: dict[str, Callable[[str], RetrievalSet]] = {
    DPR: dpr.read,
    TEVATRON: tevatron.read,
    FLAG_EMBEDDING: flag_embedding.read,
    **dict.fromkeys((SQUAD, MRQA, NATURAL_QUESTIONS, MULTIREQA), comprehension.read),
}


def read(
    path: str | os.PathLike,
    *,
    split: str | None = None,
    question_column: str = columns.QUESTION,
    answer_column: str = columns.ANSWER,
    whole: bool = True,
) -> RetrievalSet:
    """Reads the data set at `path`.

    Known are, as files, each also with `.gz`:

    - `.json`: SQuAD 1.1 and 2.0 (a paragraph a candidate), and DPR's training files;
    - `.jsonl`: Natural Questions and MRQA (likewise), Tevatron's and FlagEmbedding's training files, and a question and
      an answer a line, perhaps with hard negatives;
    - `.csv` and `.tsv` with a header line: a question and an answer a row, perhaps with hard negatives;

    and as folders BEIR, MS MARCO and MultiReQA. All are UTF-8; texts lose white space at their ends and nothing else,
    and equal texts are merged.

    Args:
      path: a file or a folder.
      split: which judgements of a BEIR or MS MARCO folder; may be None where it has one file of them. Other formats
        have no splits and ignore it.
      question_column: the column or key of the question in rows of a question and an answer; other formats ignore it.
        Where it is left at `question` and there is none, the names in `columns.QUESTIONS` are looked for.
      answer_column: the same for the answer, and `columns.ANSWERS`.
      whole: whether the pool of a BEIR folder is its whole corpus; else it is what judgements and negatives name, and
        no more is held in memory, which is enough to train on.

    Raises:
      EndxError: nothing readable is there; the message names the file, the place in it, and the reason.
    """
    path = os.fspath(path)
    found = layout(path)
    if found == ANSWERS:
        raise EndxError(
            f"{path} holds questions with strings that answer them, and no passages: rank an encoded corpus for them "
            "with `endx evaluate --index=DIR --data=...`"
        )
    formats: dict[str, Callable[[str], RetrievalSet]] = {
        BEIR: functools.partial(beir.read, split=split, whole=whole),
        MSMARCO: functools.partial(msmarco.read, split=split),
        COLUMNS: functools.partial(columns.read, names=(question_column, answer_column)),
        **FORMATS,
    }
    return formats[found](path)
