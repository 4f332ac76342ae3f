"""Small retrieval sets."""

from collections.abc import Iterable, Sequence

from endx_jax.data.sets.records import RetrievalSet


def records_of(
    qrels: Iterable[Iterable[int]], candidates: Iterable[str], questions: Sequence[str] = (), excluded=None
) -> RetrievalSet:
    """A retrieval set with made ids, whose questions have other texts than candidates unless they are given."""
    right, texts = tuple(map(tuple, qrels)), tuple(candidates)
    ids = tuple(f"q{n}" for n in range(len(right))), tuple(f"d{n}" for n in range(len(texts)))
    return RetrievalSet(tuple(questions) or ids[0], texts, right, *ids, excluded=excluded)
