"""Retrieval sets: questions, candidates and the judgements between them."""

from endx_jax.data.records import RetrievalSet


def test_a_set_of_any_size_is_shown_in_a_line():
    count = 5_000
    names = tuple(f"text {i}" for i in range(count))
    right = ((0, 1), *((i,) for i in range(1, count)))
    records = RetrievalSet(names, names, right, names, names)
    assert repr(records) == "RetrievalSet(5,000 questions, 5,000 candidates, 5,001 right pairs)"
