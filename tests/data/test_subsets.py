"""Sub-sets of a small set that can be counted by looking at it."""

import dataclasses

from endx_jax.data.records import RetrievalSet
from endx_jax.data.subsets import with_many_questions

# ant: 3 questions, bee: 2, cat: 1; q2 has both ant and cat.
RECORDS = RetrievalSet(
    questions=("q0", "q1", "q2", "q3", "q4"),
    candidates=("sea", "cat", "bee", "ant"),
    qrels=((3,), (3,), (1, 3), (2,), (2,)),
    question_ids=tuple("01234"),
    candidate_ids=("ix", "ic", "ib", "ia"),
    groups=("g", "g", "h", "h", "h"),
)


def test_questions_are_kept_whose_answers_have_enough():
    found = with_many_questions(RECORDS, (2, 3, 4))
    assert list(found) == ["answers>=2", "answers>=2-alone", "answers>=3", "answers>=3-alone"]
    whole, alone = found["answers>=3"], found["answers>=3-alone"]
    assert whole.questions == alone.questions == ("q0", "q1", "q2")
    assert whole.groups == ("g", "g", "h")
    assert whole.candidates == RECORDS.candidates
    assert whole.qrels == ((3,), (3,), (1, 3))
    assert (alone.candidates, alone.candidate_ids, alone.qrels) == (("ant",), ("ia",), ((0,), (0,), (0,)))


def test_among_several_answers_judgements_are_renumbered():
    alone = with_many_questions(RECORDS, (2,))["answers>=2-alone"]
    assert alone.candidates == ("bee", "ant")
    assert alone.qrels == ((1,), (1,), (1,), (0,), (0,))


def test_no_minimum_no_sub_set():
    assert with_many_questions(RECORDS, ()) == {}


def test_a_pool_without_words_is_left_out():
    signs = dataclasses.replace(RECORDS, candidates=("sea", "cat", "bee", "4!"))
    assert list(with_many_questions(signs, (2, 3))) == ["answers>=2", "answers>=2-alone", "answers>=3"]
