"""Numbers of questions, answers and pairs of reading-comprehension data, as papers report them; small parts of it."""

import itertools

import numpy as np

from endx_jax.data import reqa
from endx_jax.data.formats import ReadOptions, open_data
from endx_jax.data.formats.origins import ORIGINS, SPLITS, name_and_split
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.settings import PARAGRAPHS
from endx_jax.settings import check_choice


def counts_of(path: str, pool: str) -> dict[str, int]:
    """Counts questions, answers and pairs.

    Args:
      path: file, MultiReQA folder, or split of a prepared data set.
      pool: `answers`, `sentences` or `paragraphs`; see `pools`.

    Returns:
      `questions`; `answers`, the candidates of the pool; and `rows`, the pairs before equal questions are merged.
    """
    name, part = name_and_split(path)
    if name in ORIGINS:
        from endx_jax.data.formats import reqa_dataset

        check_choice(f"the split of {name}", part, SPLITS)
        reqa_dataset.ensure(name)
        counts = reqa_dataset.summary(name)[part]
        return {
            "questions": counts["questions"],
            "answers": counts["answers" if pool == "answers" else "candidates"],
            "rows": counts["rows"],
        }
    if pool == PARAGRAPHS:
        records = open_data(path, ReadOptions(pool=PARAGRAPHS)).records()
        rows = len(records.pairs)
    else:
        conversion = reqa.convert(path, pool)
        records, rows = conversion.records, conversion.rows
    return {"questions": len(records.questions), "answers": len(records.candidates), "rows": rows}


def of_few_paragraphs(records: RetrievalSet, paragraphs: int, pairs: int) -> RetrievalSet:
    """Returns questions of the paragraphs with the most of them, one of each in turn, up to a number of right pairs.

    Args:
      records: sentences after ReQA, whose ids are `PARAGRAPH.SENTENCE`.
      paragraphs: number of paragraphs.
      pairs: number of right pairs of a question and a sentence.
    """
    questions: dict[str, list[int]] = {}
    for question, right in enumerate(records.qrels):
        questions.setdefault(records.candidate_ids[right[0]].partition(".")[0], []).append(question)
    most = sorted(questions.values(), key=len, reverse=True)[:paragraphs]
    in_turn = [row for rows in itertools.zip_longest(*most) for row in rows if row is not None]
    count = np.cumsum([len(records.qrels[row]) for row in in_turn])
    return records.subset(in_turn[: int(np.searchsorted(count, pairs)) + 1], hard_negatives=False)
