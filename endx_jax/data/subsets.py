"""Parts of a test set that are harder: the questions whose answers many others share."""

import dataclasses
import re
from collections.abc import Sequence

from endx_jax.data.records import RetrievalSet, askers

# What BM25 takes for one.
WORD = re.compile(r"\w\w")


def with_many_questions(records: RetrievalSet, minimums: Sequence[int]) -> dict[str, RetrievalSet]:
    """The questions that share an answer with many, ranked in the whole pool, and among such answers alone.

    For each minimum n where there is such an answer (n = 8 in Wang et al. 2021, Table 4, and Yu et al. 2020, Table 3):

    - `answers>=n`: the questions with a right candidate that is right for at least n, ranked in the whole pool.
    - `answers>=n-alone`: the same questions, with a pool of such candidates alone, and the judgements of these.
      Left out where none of them holds a word, which BM25 could not rank.

    Args:
      records: the set.
      minimums: numbers of questions.
    """
    asked, found = askers(records.qrels), {}
    for minimum in minimums:
        kept = sorted(candidate for candidate, questions in asked.items() if len(questions) >= minimum)
        if kept:
            rows = sorted({row for candidate in kept for row in asked[candidate]})
            found[f"answers>={minimum}"] = records.asking(rows)
            if any(WORD.search(records.candidates[candidate]) for candidate in kept):
                found[f"answers>={minimum}-alone"] = _alone(records, rows, kept)
    return found


def _alone(records: RetrievalSet, rows: Sequence[int], kept: Sequence[int]) -> RetrievalSet:
    """The questions in `rows`, with the candidates in `kept` and no others."""
    new = {candidate: n for n, candidate in enumerate(kept)}
    return dataclasses.replace(
        records.asking(rows),
        candidates=tuple(records.candidates[candidate] for candidate in kept),
        candidate_ids=tuple(records.candidate_ids[candidate] for candidate in kept),
        qrels=tuple(tuple(new[c] for c in records.qrels[row] if c in new) for row in rows),
        hard_negatives=None,
    )
