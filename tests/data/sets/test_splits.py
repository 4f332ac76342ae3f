import dataclasses
import hashlib

import pytest
from refusals import check_refusal

from endx_jax.data.sets import splits
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.sets.splits import limit_questions, split, split_questions, take, with_many_questions

NAMES = ("train", "validation", "test")


def some(count: int) -> RetrievalSet:
    """Two questions an answer."""
    return RetrievalSet.from_pairs((f"question {n}", f"answer {n // 2}") for n in range(count))


def places(splits) -> dict[str, str]:
    return {text: name for name in NAMES for text in getattr(splits, name).questions}


def place(text: str) -> float:
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 16**12


def by_text(records: RetrievalSet) -> dict[str, set[str]]:
    questions = zip(records.questions, records.qrels, strict=True)
    return {question: {records.candidates[row] for row in right} for question, right in questions}


def test_one_answer_a_question_goes_where_the_hash_of_the_answer_says():
    records = some(2000)
    found = places(split(records, validation=0.2, test=0.1))
    for question, (answer,) in by_text(records).items():
        at = place(answer)
        assert found[question] == ("test" if at < 0.1 else "validation" if at < 0.1 + 0.2 else "train")
    # 1,000 answers: 100 and 200 expected, standard deviations sqrt(90) < 10 and sqrt(160) < 13.
    sizes = {name: len(getattr(split(records, validation=0.2, test=0.1), name).candidates) for name in NAMES}
    assert abs(sizes["test"] - 100) < 40
    assert abs(sizes["validation"] - 200) < 52
    assert sum(sizes.values()) == 1000


def test_each_split_judges_as_the_whole_did_over_its_own_pool():
    pairs = [(f"question {n}", f"answer {n // 2}") for n in range(200)]
    records = RetrievalSet.from_pairs([*pairs, *((f"question {n}", f"other {n // 4}") for n in range(200))])
    splits = split(records, validation=0.3, test=0.3)
    whole, parts = by_text(records), [by_text(getattr(splits, name)) for name in NAMES]
    assert {question: right for part in parts for question, right in part.items()} == whole
    pools = [set(getattr(splits, name).candidates) for name in NAMES]
    assert all(pool == set().union(*part.values()) for pool, part in zip(pools, parts, strict=True))
    assert sum(map(len, pools)) == len(set().union(*pools))
    ids = dict(zip(records.questions, records.question_ids, strict=True))
    for name in NAMES:
        part = getattr(splits, name)
        assert part.question_ids == tuple(ids[text] for text in part.questions)
        assert all(right == tuple(sorted(right)) for right in part.qrels)


def test_questions_with_joined_answers_stay_together_and_fall_by_the_fractions():
    # Question n has answers n and n + 1: all of a chain of 10 are a component of 11, placed by the smallest hash.
    pairs = [(f"c{chain} q{n}", f"c{chain} a{n + step}") for chain in range(60) for n in range(10) for step in (0, 1)]
    found = places(split(RetrievalSet.from_pairs(pairs), validation=0.02, test=0.02))
    for chain in range(60):
        at = 1 - (1 - min(place(f"c{chain} a{n}") for n in range(11))) ** 11
        expected = "test" if at < 0.02 else "validation" if at < 0.04 else "train"
        assert {found[f"c{chain} q{n}"] for n in range(10)} == {expected}
    # 400 components of 20 answers each: 80 expected in test, standard deviation sqrt(400 * 0.2 * 0.8) = 8.
    pairs = [(f"question {n}", f"answer {n} {m}") for n in range(400) for m in range(20)]
    assert abs(len(split(RetrievalSet.from_pairs(pairs), validation=0, test=0.2).test.questions) - 80) < 32


def grouped(count: int, size: int) -> RetrievalSet:
    """`size` questions a group, each with an answer of its own and the next one's as a hard negative."""
    records = RetrievalSet.from_pairs((f"question {n}", f"answer {n}") for n in range(count))
    groups = tuple(f"article {n // size}" for n in range(count))
    hard = tuple((n - n % size + (n + 1) % size,) for n in range(count))
    return dataclasses.replace(records, groups=groups, hard_negatives=hard)


def test_groups_stay_together_and_go_where_the_hash_of_their_name_says():
    records = grouped(1000, 10)
    found = places(split(records, validation=0.2, test=0.1))
    for question, group in zip(records.questions, records.groups, strict=True):
        at = place(group)
        assert found[question] == ("test" if at < 0.1 else "validation" if at < 0.1 + 0.2 else "train")
    records = grouped(40, 10)
    joined = dataclasses.replace(records, qrels=((0, 39), *records.qrels[1:]))
    found = places(split(joined, validation=0, test=0.5))
    assert len({found[f"question {n}"] for n in (*range(10), *range(30, 40))}) == 1


def test_a_part_keeps_groups_and_hard_negatives_by_their_texts():
    records = grouped(100, 10)
    part = split(records, validation=0.2, test=0.2).train
    for row, question in enumerate(part.questions):
        n = int(question.split()[1])
        assert part.groups[row] == f"article {n // 10}"
        assert [part.candidates[c] for c in part.hard_negatives[row]] == [f"answer {n - n % 10 + (n + 1) % 10}"]
    assert part.subset(range(3), hard_negatives=False).hard_negatives is None
    assert len(part.subset([0], hard_negatives=False).candidates) == 1


def test_more_data_moves_no_question_and_candidates_that_are_never_right_are_in_no_pool():
    before = places(split(some(400), validation=0.2, test=0.2))
    more = [(f"question {n}", f"answer {n // 2}") for n in range(800)]
    more += [(f"another question {n}", f"answer {n // 2}") for n in range(400)]
    after = places(split(RetrievalSet.from_pairs(reversed(more)), validation=0.2, test=0.2))
    assert {question: after[question] for question in before} == before
    tests = [split(some(400), validation=share, test=0.2).test for share in (0.0, 0.1, 0.5)]
    assert tests[0] == tests[1] == tests[2]
    records = dataclasses.replace(some(4), candidates=("answer 0", "answer 1", "spare"), candidate_ids=("a", "b", "c"))
    assert split(records, validation=0, test=0).train.candidate_ids == ("a", "b")


@pytest.mark.parametrize(
    ("answers", "largest", "label"),
    [([["yes"]] * 60, 60, True), ([["yes"], ["no"]] * 30, 30, True), ([[n, n + 1] for n in range(60)], 60, False)],
)
def test_a_split_is_empty_because_questions_share_answers(answers, largest, label):
    pairs = [(f"question {n}", f"answer {answer}") for n, own in enumerate(answers) for answer in own]
    named = ["60 questions", "0.05", "a common answer", f"up to {largest}", *["data.answer_column"] * label]
    records = RetrievalSet.from_pairs(pairs)
    check_refusal(lambda: split(records, validation=0.05, test=0.1), *named, "data.held_out_by=")


@pytest.mark.parametrize("articles", [1, 2])
def test_a_split_is_empty_because_groups_are_few(articles):
    records = dataclasses.replace(some(60), groups=tuple(f"article {n * articles // 60}" for n in range(60)))
    named = "a common article or answer", f"up to {60 // articles}", "data.held_out_by"
    check_refusal(lambda: split(records, validation=0.05, test=0.1), *named)


@pytest.mark.parametrize("divide", [split, split_questions])
def test_what_trains_has_a_question_in_each_split(divide):
    for count in (1, 9, 10, 14, 22, 31, 40):
        for shop in range(20):
            pairs = [(f"question {n} of {shop}", f"answer {n} of {shop}") for n in range(count)]
            records = dataclasses.replace(RetrievalSet.from_pairs(pairs), question_ids=tuple(q for q, _ in pairs))
            for validation, test in ((0.05, 0.1), (0.001, 0.0), (0.0, 0.001), (0.3, 0.69)):
                parts = divide(records, validation=validation, test=test)
                assert parts.train.questions
                assert bool(parts.validation.questions) == (count >= 10 and validation > 0)
                assert bool(parts.test.questions) == (count >= 10 and test > 0)
                assert places(parts).keys() == set(records.questions)


@pytest.mark.parametrize("divide", [split, split_questions])
def test_both_directions_of_a_pair_are_in_one_split(divide):
    pairs = [(f"text {n}", f"other {n}") for n in range(300)]
    chain = [(f"text {n}", f"text {n + 300}") for n in range(300)]  # to a question without a mirror
    both = [*pairs, *((b, a) for a, b in pairs), *chain, *((f"text {n + 300}", f"last {n}") for n in range(300))]
    records = RetrievalSet.from_pairs(both)
    found = places(divide(records, validation=0.3, test=0.3))
    for n in range(300):
        assert len({found[f"text {n}"], found[f"other {n}"], found[f"text {n + 300}"]}) == 1
    assert {*found.values()} == {*NAMES}


def test_a_question_of_the_test_data_is_not_trained_on_as_an_answer_either():
    records = RetrievalSet.from_pairs([("u", "v"), ("v", "u"), ("w", "u"), ("w", "x"), ("x", "y")])
    assert splits.without_questions(records, {"u"}).questions == ("x",)


def test_small_shares_hold_out_the_smallest_positions_and_large_ones_leave_nothing_for_training():
    pairs = [(f"question {n}", f"answer {n}") for n in range(10)]
    first, second, *_ = sorted(pairs, key=lambda pair: place(pair[1]))
    parts = split(RetrievalSet.from_pairs(pairs), validation=1e-9, test=1e-9)
    assert (parts.test.questions, parts.validation.questions) == ((first[0],), (second[0],))
    parts = split_questions(some(40), validation=1e-9, test=1 - 1e-9)
    assert (len(parts.train.questions), len(parts.validation.questions), len(parts.test.questions)) == (0, 1, 39)


def test_take_keeps_the_smallest_hashes_in_their_order():
    records = some(100)
    expected = sorted(records.questions, key=lambda text: hashlib.sha256(text.encode()).hexdigest())[:7]
    part = take(records, 7)
    assert list(part.questions) == expected
    assert by_text(part) == {question: by_text(records)[question] for question in expected}
    assert set(part.candidates) == set().union(*by_text(part).values())
    assert len(take(records, 1000).questions) == 100


def test_fewer_questions_are_those_of_take_and_ask_the_whole_pool():
    records = dataclasses.replace(some(100), groups=tuple(f"group {n // 4}" for n in range(100)))
    part = limit_questions(records, 7)
    assert (part.questions, part.candidates) == (take(records, 7).questions, records.candidates)
    assert by_text(part) == {question: by_text(records)[question] for question in part.questions}
    assert part.groups == take(records, 7).groups
    assert limit_questions(records, 0) is limit_questions(records, 100) is records


@pytest.mark.parametrize(("count", "questions"), [(1, 1), (2, 1), (3, 2), (4, 3), (6, 3), (7, 3)])
def test_the_first_pairs_are_those_of_as_few_questions_as_have_them(count, questions):
    # Questions with 2, 1 and 3 right answers: 2, 3 and 6 pairs in all.
    records = RetrievalSet.from_pairs([(f"q{q}", f"a{a}") for q, a in ((0, 0), (0, 1), (1, 2), (2, 0), (2, 3), (2, 4))])
    assert records.first(count).questions == records.questions[:questions]


# ant: 3 questions, bee: 2, cat: 1; q2 has both ant and cat.
QUESTIONS, CANDIDATES = ("q0", "q1", "q2", "q3", "q4"), ("sea", "cat", "bee", "ant")
RIGHT, GROUPS = ((3,), (3,), (1, 3), (2,), (2,)), ("g", "g", "h", "h", "h")
RECORDS = RetrievalSet(QUESTIONS, CANDIDATES, RIGHT, (*"01234",), ("ix", "ic", "ib", "ia"), GROUPS)


def test_questions_are_kept_whose_answers_have_enough():
    found = with_many_questions(RECORDS, (2, 3, 4))
    assert list(found) == ["answers>=2", "answers>=2-alone", "answers>=3", "answers>=3-alone"]
    whole, alone = found["answers>=3"], found["answers>=3-alone"]
    assert whole.questions == alone.questions == ("q0", "q1", "q2")
    assert (whole.groups, whole.candidates) == (("g", "g", "h"), RECORDS.candidates)
    assert whole.qrels == ((3,), (3,), (1, 3))
    assert (alone.candidates, alone.candidate_ids, alone.qrels) == (("ant",), ("ia",), ((0,), (0,), (0,)))
    alone = with_many_questions(RECORDS, (2,))["answers>=2-alone"]
    assert (alone.candidates, alone.qrels) == (("bee", "ant"), ((1,), (1,), (1,), (0,), (0,)))
    signs = dataclasses.replace(RECORDS, candidates=("sea", "cat", "bee", "4!"))
    assert list(with_many_questions(signs, (2, 3))) == ["answers>=2", "answers>=2-alone", "answers>=3"]
