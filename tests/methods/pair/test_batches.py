"""Answers that a question is joined with, and the tokens of joined texts."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import same, token_table

from endx_jax.data.batches.collator import MOST_POSITIVES, BatchStream
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.methods.pair import PairSettings
from endx_jax.methods.pair.batches import join_texts, pair_collator

N, B = 24, 8
# Question 3n and 3n + 1 share the answer n, which is right for 3n + 2 too, beside one of its own.
RECORDS = RetrievalSet.from_pairs(
    [(f"q{i}", f"a{i // 3}") for i in range(N)] + [(f"q{i}", f"own {'on ' * (i % 5)}{i}") for i in range(2, N, 3)]
)
HARD = tuple((0, 5) if 0 not in right and 5 not in right else () for right in RECORDS.qrels)


@pytest.fixture(scope="module")
def pairs(tiny_bert):
    tokenizer = Tokenizer(tiny_bert)
    processors = {"question": TextProcessor(tokenizer, 16), "answer": TextProcessor(tokenizer, 40)}
    return dataclasses.replace(RECORDS, hard_negatives=HARD).tokenize(processors)


def stream(pairs, negatives=3, hard_negatives=0, **changes):
    settings = PairSettings(negatives=negatives)
    collator = pair_collator(pairs, settings, hard_negatives=hard_negatives)
    options = {"seed": 1, "global_batch_size": B, "hard_negatives": hard_negatives} | changes
    return BatchStream(pairs, collator, **options)


def answers_of(pairs, batch):
    """The rows of the answers in a batch, [B, 1 + K]: told by their tokens."""
    answers, tokens = pairs.answers, batch.pairs
    bounds = zip(answers.offsets, answers.offsets[1:], strict=False)
    rows = {tuple(answers.ids[a:b][1:]): n for n, (a, b) in enumerate(bounds)}
    flat = zip(*(x.reshape(-1, *x.shape[2:]) for x in (tokens.ids, tokens.mask, tokens.second)), strict=True)
    return np.array([rows[tuple(ids[mask][second:])] for ids, mask, second in flat]).reshape(batch.where.shape)


@pytest.mark.parametrize("hard", [0, 1])
def test_every_question_has_its_answer_first_and_then_wrong_ones_of_the_batch(pairs, hard):
    source = stream(pairs, hard_negatives=hard)
    drawn = 0
    for step in range(6):
        batch = source[step]
        question_id, answer_id = pairs.index[source.example_ids(step)].T
        assert (batch.question_id == question_id).all()
        found = answers_of(pairs, batch)
        assert (found[:, 0] == answer_id).all()
        for row, question in enumerate(question_id):
            wrong = found[row, 1:][batch.where[row, 1:]]
            assert len(set(wrong)) == len(wrong)
            assert not set(wrong) & set(RECORDS.qrels[question])
            in_batch = found[row, 1 + hard :][batch.where[row, 1 + hard :]]
            assert set(in_batch) <= set(answer_id)
            if hard:
                assert batch.where[row, 1] == bool(HARD[question])
                assert not HARD[question] or found[row, 1] in HARD[question]
            drawn += len(wrong)
    assert drawn > 6 * B * 2.9


def test_missing_wrong_answers_are_masked(pairs):
    source = stream(pairs, negatives=B)
    batch = source[0]
    answer_id = pairs.index[source.example_ids(0), 1]
    for row, question in enumerate(batch.question_id):
        expected = len(set(answer_id) - set(RECORDS.qrels[question]))
        assert batch.where[row].sum() == 1 + expected < 1 + B
    own = np.broadcast_to(answer_id[:, None], batch.where.shape)
    assert (answers_of(pairs, batch) == own)[~batch.where].all()
    assert stream(pairs, negatives=0, hard_negatives=1)[0].where.shape == (B, 2)  # hard ones are enough


def test_a_batch_is_a_function_of_seed_step_and_row(pairs):
    whole = stream(pairs)[4]
    assert same(whole, stream(pairs)[4])
    assert not same(whole.pairs.ids, stream(pairs, seed=2)[4].pairs.ids)
    halves = [stream(pairs, rows=slice(start, start + B // 2))[4] for start in (0, B // 2)]
    assert same(jax.tree.map(lambda *parts: np.concatenate(parts), *halves), whole)
    # Lots are other ones at each step, though the same question stands in the same place.
    drawn = stream(pairs).sampler(0)
    assert not same(*(stream(pairs).collator.draw_in_batch(dataclasses.replace(drawn, key=(1, n))) for n in (0, 1)))


def test_no_right_answer_is_drawn_for_a_question_with_very_many(tiny_bert):
    count = MOST_POSITIVES + 16
    shared = [("q", f"a {n}") for n in range(count)] + [(f"q {n}", f"a {n}") for n in range(count)]
    tokenizer = Tokenizer(tiny_bert)
    processor = TextProcessor(tokenizer, 16)
    many = RetrievalSet.from_pairs(shared).tokenize({"question": processor, "answer": processor})
    source = stream(many, global_batch_size=2 * count)
    assert (source.collator.draw_in_batch(source.sampler(0)) >= 0).any(axis=1).sum() == count  # none for "q"


def test_packings_have_room_and_shapes_are_those_of_the_batches(pairs):
    packed = stream(pairs).without_padding(6, shards=2, chunks=2)
    shapes = {jax.tree.structure(p): [x.shape for x in jax.tree.leaves(p)] for p in packed.profiles()}
    for step in range(6):
        batch = packed[step]
        assert shapes[jax.tree.structure(batch)] == [x.shape for x in jax.tree.leaves(batch)]
        bare = stream(pairs)[step].pairs
        assert batch.pairs.lengths.tolist() == bare.lengths.tolist()
    assert packed.typical().pairs.ids.shape[:2] == (B, 4)


def test_the_seconds_first_token_is_left_out_and_its_place_is_known():
    questions = token_table([101, 1, 102], [101, 2, 3, 102])
    answers = token_table([101, 7, 8, 102], [101, 102])
    joined = join_texts(questions, answers, np.array([[1, 0], [0, 0], [1, 1]]))
    rows = [joined.ids[a:b].tolist() for a, b in zip(joined.offsets, joined.offsets[1:], strict=False)]
    assert rows == [[101, 2, 3, 102, 7, 8, 102], [101, 1, 102, 7, 8, 102], [101, 2, 3, 102, 102]]
    assert joined.second.tolist() == [4, 3, 4]
    assert join_texts(token_table([1] * 40_000), answers, np.array([[0, 0]])).second.tolist() == [40_000]
    assert (joined.cut, join_texts(questions, answers, np.array([[1, 0], [0, 1]]), limit=5).truncated.tolist()) == (
        0,
        [True, False],
    )
    tokens = joined.pad(np.array([2, 1]), 8)
    assert tokens.ids.tolist() == [[101, 2, 3, 102, 102, 0, 0, 0], [101, 1, 102, 7, 8, 102, 0, 0]]
    assert tokens.mask.sum(1).tolist() == [5, 6]
    assert tokens.second.tolist() == [4, 3]


def test_ids_between_take_the_place_of_the_seconds_first_token():
    questions, answers = token_table([101, 1, 102], [101, 2, 3, 102]), token_table([101, 7, 8, 102])
    for between, expected in (((102,), [101, 2, 3, 102, 102, 7, 8, 102]), ((5, 6), [101, 2, 3, 102, 5, 6, 7, 8, 102])):
        joined = join_texts(questions, answers, np.array([[0, 0], [1, 0]]), between)
        assert joined.ids[joined.offsets[1] :].tolist() == expected
        assert joined.second.tolist() == [3 + len(between), 4 + len(between)]
