import jax
import numpy as np
import pytest

from endx_jax.data.batches import BatchStream, DataSettings, Pairs
from endx_jax.data.records import RetrievalSet
from endx_jax.data.tokenization import Tokenizer
from endx_jax.errors import EndxError

RECORDS = RetrievalSet.from_pairs((f"where is cat {i}", f"the cat {'sat ' * (i % 7)}on {i}") for i in range(20))


@pytest.fixture(scope="module")
def pairs(tiny_bert):
    return Pairs.tokenize(RECORDS, Tokenizer(tiny_bert), DataSettings(question_length=16, answer_length=40))


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
    pairs = Pairs.tokenize(records, Tokenizer(tiny_bert), DataSettings())
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
