"""Judgements, turned about: which questions an answer has."""

from collections.abc import Sequence

from endx_jax.data.records import askers
from endx_jax.errors import EndxError


def questions_of(qrels: Sequence[Sequence[int]], candidates: int) -> list[list[int]]:
    """For each of the candidates the questions that it is right for, in order."""
    asked = askers(qrels)
    return [asked.get(candidate, []) for candidate in range(candidates)]


def with_at_least(asked: Sequence[Sequence[int]], count: int) -> list[int]:
    """The candidates with at least so many questions.

    Raises:
      EndxError: there is none.
    """
    found = [candidate for candidate, questions in enumerate(asked) if len(questions) >= count]
    if not found:
        most = max(map(len, asked), default=0)
        raise EndxError(f"no answer has {count} questions, the most is {most}: give more questions, or ask for fewer")
    return found
