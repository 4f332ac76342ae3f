from helpers import one_line_error

from endx_jax.data.records import one_to_one
from reproduction.figures.study import questions_of, with_at_least

# Question 0 has answers 1 and 2, question 1 has 1, question 2 has 2, question 3 has 1.
QRELS = ((1, 2), (1,), (2,), (1,))


def test_questions_of_each_answer():
    assert questions_of(QRELS, 4) == [[], [0, 1, 3], [0, 2], []]


def test_pairs_name_no_question_and_no_answer_twice():
    assert one_to_one(QRELS) == [(0, 1), (2, 2)]


def test_answers_with_many_questions():
    asked = questions_of(QRELS, 4)
    assert with_at_least(asked, 1) == [1, 2]
    assert with_at_least(asked, 3) == [1]
    with one_line_error("no answer has 4 questions, the most is 3"):
        with_at_least(asked, 4)
