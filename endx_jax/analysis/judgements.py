"""Judgements, turned about: which questions an answer has."""

from collections.abc import Sequence

from endx_jax.errors import EndxError


def questions_of(qrels: Sequence[Sequence[int]], candidates: int) -> list[list[int]]:
    """For each of the candidates the questions that it is right for, in order."""
    asked: list[list[int]] = [[] for _ in range(candidates)]
    for question, right in enumerate(qrels):
        for candidate in right:
            asked[candidate].append(question)
    return asked


def pairs(qrels: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(question, candidate) pairs with no question and no candidate twice: the first question of each first answer."""
    first: dict[int, int] = {}
    for question, right in enumerate(qrels):
        first.setdefault(right[0], question)
    return [(question, candidate) for candidate, question in first.items()]


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
