import dataclasses

from endx_jax.data.sets.records import RetrievalSet, RetrievalSetBuilder
from endx_jax.data.sources import mix


def test_a_set_is_shown_in_a_line_and_a_question_s_own_text_is_ranked_if_it_is_right():
    count = 5_000
    names = tuple(f"text {i}" for i in range(count))
    right = ((0, 1), *((i,) for i in range(1, count)))
    records = RetrievalSet(names, names, right, names, names)
    assert repr(records) == "RetrievalSet(5,000 questions, 5,000 candidates, 5,001 right pairs)"
    records = RetrievalSet.from_pairs([("u", "v"), ("v", "u"), ("w", "w"), ("w", "v"), ("x", "y")])
    assert (records.own_texts, records.excluded) == ({0: 1, 1: 0}, ((1,), (0,), (), ()))
    assert RetrievalSet.from_pairs([("u", "v"), ("w", "w")]).excluded is None


def test_what_is_right_is_neither_a_hard_negative_nor_excluded_and_what_is_excluded_is_no_hard_negative():
    merged = RetrievalSetBuilder()
    merged.add("q", [], ["a"])
    merged.add("q", ["a"], ["b", "a", "d", "q"], excluded=["a", "b"])
    merged.add("r", [], ["c"])  # nothing is right for it
    expected = RetrievalSet(("q",), ("a", "b", "d", "q"), ((0,),), ("q0",), ("d0", "d1", "d2", "d3"))
    assert merged.build() == dataclasses.replace(expected, hard_negatives=((2,),), excluded=((1, 3),))


def test_a_question_that_is_not_merged_has_one_row_for_each_id_and_ids_of_several_texts_are_made_unique():
    merged = RetrievalSetBuilder()
    for question, right, name in ("qa1", "qb1", "ra1", ("q", "a", "1_"), ("q", "a", "q4")):
        merged.add(question, [right], id=name, merge=False)
    merged.add("s", [("a", "1"), ("c", "d0")])
    merged.candidate("d", "d0")
    records = merged.build()
    assert records.qrels == ((0, 1), (0,), (0,), (0,), (0, 2))
    assert records.question_ids == ("1", "1__", "1_", "q4", "q4_")
    assert records.candidate_ids == ("d0_", "d1", "d0", "d0__")


FIRST = RetrievalSet(("who?", "what?"), ("x", "y"), ((0,), (1,)), ("q0", "q1"), ("d0", "d1"))
FIRST = dataclasses.replace(FIRST, groups=("A", "A"), hard_negatives=((1,), (0,)))
SECOND = RetrievalSet(("where?", "who?"), ("z", "y"), ((0,), (0, 1)), ("q0", "q1"), ("d0", "d1"))


def test_equal_texts_are_one_with_everything_that_is_right_for_them():
    mixed = mix([FIRST, SECOND])
    assert (mixed.questions, mixed.candidates) == (("who?", "what?", "where?"), ("x", "y", "z"))
    assert mixed.qrels == ((0, 1, 2), (1,), (2,))
    assert mixed.sources == ({0: (0,), 1: (1,), 2: (1,)}, {1: (0,)}, {2: (1,)})
    # "y" was a hard negative of "who?" in the first set, and is right in the second.
    assert (mixed.hard_negatives, mixed.question_ids) == (((), (0,), ()), ("q0", "q1", "1:q0"))
    assert (mixed.candidate_ids, mixed.groups) == (("d0", "d1", "1:d0"), ("A", "A", "question 1:q0"))
    assert mixed.subset([2, 0]).sources == ({0: (1,)}, {0: (1,), 1: (0,), 2: (1,)})
    assert mixed.own is FIRST


def test_of_scores_the_first_and_of_grades_the_highest_is_kept():
    first = dataclasses.replace(FIRST, scores=({0: 1.0, 1: 0.5}, {1: 2.0}), grades=({0: 3}, {1: 1}))
    second = dataclasses.replace(SECOND, scores=({0: 4.0}, {0: 5.0, 1: 6.0}), excluded=((1,), ()))
    third = RetrievalSet(("who?",), ("x",), ((0,),), ("q0",), ("d0",), scores=({0: 9.0},), grades=({0: 2},))
    mixed = mix([first, second, third])
    assert mixed.scores == ({0: 1.0, 1: 0.5, 2: 5.0}, {1: 2.0}, {2: 4.0})
    assert (mixed.grades, mixed.excluded) == (({0: 3, 1: 1, 2: 1}, {1: 1}, {2: 1}), ((), (), (1,)))


def test_one_set_comes_out_as_it_was_and_empty_fields_stay_empty():
    assert mix([FIRST]) == dataclasses.replace(FIRST, sources=({0: (0,)}, {1: (0,)}))
    bare = dataclasses.replace(FIRST, groups=None, hard_negatives=None)
    mixed = mix([bare, SECOND])
    assert mixed.groups is None
    assert mixed.hard_negatives is None
