"""Retrieval sets: questions, candidates and the judgements between them."""

import dataclasses

from endx_jax.data.records import RetrievalSet, RetrievalSetBuilder


def test_a_set_of_any_size_is_shown_in_a_line():
    count = 5_000
    names = tuple(f"text {i}" for i in range(count))
    right = ((0, 1), *((i,) for i in range(1, count)))
    records = RetrievalSet(names, names, right, names, names)
    assert repr(records) == "RetrievalSet(5,000 questions, 5,000 candidates, 5,001 right pairs)"


def test_what_is_right_is_neither_a_hard_negative_nor_excluded():
    merged = RetrievalSetBuilder()
    for candidate in map(merged.candidate, "aba"):
        merged.wrong[merged.question("q")].add(candidate)
        merged.excluded[merged.question("q")].add(candidate)
    merged.judge(0, 0)
    expected = RetrievalSet(("q",), ("a", "b"), ((0,),), ("q0",), ("d0", "d1"))
    assert merged.build() == dataclasses.replace(expected, hard_negatives=((1,),), excluded=((1,),))
