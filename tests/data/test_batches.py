import dataclasses

import jax
import numpy as np
import pytest

from endx_jax.data.batches import BatchStream, DataSettings, Pairs
from endx_jax.data.records import RetrievalSet
from endx_jax.data.tokenization import Preparation, Tokenizer
from endx_jax.errors import EndxError

RECORDS = RetrievalSet.from_pairs((f"where is cat {i}", f"the cat {'sat ' * (i % 7)}on {i}") for i in range(20))


def preparations(folder):
    tokenizer = Tokenizer(folder)
    return {"question": Preparation(tokenizer, 16), "answer": Preparation(tokenizer, 40)}


@pytest.fixture(scope="module")
def pairs(tiny_bert):
    return Pairs.tokenize(RECORDS, preparations(tiny_bert))


def stream(pairs, **changes):
    return BatchStream(pairs, **({"seed": 1, "global_batch_size": 8} | changes))


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_batch_is_a_function_of_seed_and_step(pairs):
    assert same(stream(pairs)[7], stream(pairs)[7])
    assert not same(stream(pairs)[7], stream(pairs)[8])
    assert not same(stream(pairs)[7], stream(pairs, seed=2)[7])


def test_each_epoch_passes_over_every_pair_once_in_its_own_order(pairs):
    source = stream(pairs)
    drawn = np.concatenate([source.example_ids(step) for step in range(5)])  # 40 = 2 epochs of 20
    assert sorted(drawn[:20]) == list(range(20))
    assert sorted(drawn[20:]) == list(range(20))
    assert list(drawn[:20]) != list(drawn[20:])


def test_iterating_gives_the_steps_asked_for(pairs):
    source = stream(pairs)
    for step, batch in zip(range(3, 6), source.iterate(3, 6, threads=2), strict=True):
        assert same(batch, source[step])


def test_rows_of_processes_make_up_the_global_batch(pairs):
    whole = stream(pairs)[4]
    halves = [stream(pairs, rows=slice(start, start + 4))[4] for start in (0, 4)]
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *halves)
    assert same(joined, whole)


def test_ids_name_the_texts_and_their_positives():
    records = RetrievalSet.from_pairs([("q0", "a0"), ("q0", "a1"), ("q1", "a0")])
    assert records.pairs == [(0, 0), (0, 1), (1, 0)]
    assert records.qrels == ((0, 1), (0,))


def test_positives_are_padded_with_minus_one(tiny_bert):
    records = RetrievalSet.from_pairs([("a", "x"), ("a", "y"), ("b", "z")])
    pairs = Pairs.tokenize(records, preparations(tiny_bert))
    np.testing.assert_array_equal(pairs.positives, [[0, 1], [2, -1]])


def test_a_batch_larger_than_the_data_is_refused(pairs):
    with pytest.raises(EndxError, match="global batch of 21 pairs is larger than the training data, 20 pairs"):
        stream(pairs, global_batch_size=21)


def test_fewer_pairs_can_be_asked_for(pairs):
    drawn = np.concatenate([stream(pairs.first(8)).example_ids(step) for step in range(3)])
    assert set(drawn) == set(range(8))


@pytest.mark.parametrize("values", [{"question_length": 2}, {"answer_length": 1}, {"path": ""}])
def test_settings_out_of_bounds_are_refused(values):
    with pytest.raises(EndxError, match="data\\."):
        DataSettings(**values)


@pytest.fixture(scope="module")
def articles(tiny_bert):
    """Two articles of eight questions; each has the answers of the next two questions of its article against it."""
    records = RetrievalSet.from_pairs((f"where is cat {i}", f"the cat sat on {i}") for i in range(16))
    hard = [tuple(sorted(i - i % 8 + (i + n) % 8 for n in (1, 2))) for i in range(15)]
    records = dataclasses.replace(records, groups=tuple("ab"[i // 8] for i in range(16)), hard_negatives=(*hard, ()))
    return Pairs.tokenize(records, preparations(tiny_bert))


def test_batches_can_hold_one_group(articles):
    source = stream(articles, group_size=8)
    for step in range(4):
        assert len(set(source[step].question_id // 8)) == 1
    mixed = stream(articles)
    assert any(len(set(mixed[step].question_id // 8)) == 2 for step in range(4))


def test_hard_negatives_are_drawn_from_the_questions_own_without_repetition(articles):
    source = stream(articles, hard_negatives=3)
    seen = {}
    for step in range(20):
        batch = source[step]
        assert batch.hard_negatives.ids.shape[:2] == batch.hard_negative_ids.shape == (8, 3)
        for row, question in enumerate(batch.question_id):
            drawn = batch.hard_negative_ids[row]
            known = [n for n in articles.hard_negatives[question] if n >= 0]
            assert sorted(drawn[drawn >= 0]) == known
            for place, candidate in enumerate(drawn):
                if candidate < 0:  # a stand-in: the question's own answer
                    candidate = batch.answer_id[row]
                length = batch.hard_negatives.mask[row, place].sum()
                tokens = articles.answers.ids[articles.answers.offsets[candidate] :][:length]
                assert length == articles.answers.lengths[candidate]
                np.testing.assert_array_equal(batch.hard_negatives.ids[row, place, :length], tokens)
    for step in range(40):
        batch = stream(articles, hard_negatives=1)[step]
        for question, drawn in zip(batch.question_id, batch.hard_negative_ids[:, 0], strict=True):
            seen.setdefault(int(question), set()).add(int(drawn))
    assert all(len(seen[question]) == 2 for question in range(15))  # each of two was drawn some time
    assert seen[15] == {-1}


def test_rows_of_processes_make_up_the_global_batch_of_hard_negatives(articles):
    whole = stream(articles, hard_negatives=1)[4]
    halves = [stream(articles, hard_negatives=1, rows=slice(start, start + 4))[4] for start in (0, 4)]
    assert same(jax.tree.map(lambda *parts: np.concatenate(parts), *halves), whole)


def test_groups_and_hard_negatives_must_be_there(pairs):
    with pytest.raises(EndxError, match="data.group_size is 2, but the training data has no groups"):
        stream(pairs, group_size=2)
    with pytest.raises(EndxError, match="data.hard_negatives is 1, but the training data names none"):
        stream(pairs, hard_negatives=1)


def test_prompts_stand_before_every_text_and_count_for_its_length(tiny_bert):
    tokenizer = Tokenizer(tiny_bert)
    with_prompt, by_hand = Preparation(tokenizer, 8, "the "), Preparation(tokenizer, 8)
    found, expected = with_prompt(["cat", "mat 123456789"]), by_hand(["the cat", "the mat 123456789"])
    np.testing.assert_array_equal(found.ids, expected.ids)
    assert list(found.lengths) == [4, 8]
