import threading

import numpy as np
import pytest
from helpers import mesh_of

from endx_jax.data.batches.token_tables import TokenTable
from endx_jax.inference.text_batches import Shapes, batches, padded_width, prefetch


def shapes(limit: int, budget: int, devices: int = 1) -> Shapes:
    return Shapes(mesh_of(devices), limit, budget)


def lengths_to_tokens(texts):
    """A processor: a text is its number of tokens, each of which is that number."""
    return TokenTable.from_lengths(np.repeat(texts, texts).astype(np.int32), np.array(texts, np.int64), 0)


def test_widths_are_rungs_of_the_ladder_up_to_the_limit():
    widths = {0: 4, 1: 4, 8: 8, 9: 12, 32: 32, 33: 40, 65: 80, 129: 160, 257: 320, 513: 576, 1025: 1152}
    assert {length: padded_width(length) for length in widths} == widths
    assert [width for _, _, width in shapes(500, 1).split(np.array([500, 5]))] == [500, 8]


@pytest.mark.parametrize(
    ("texts", "rows"), [(500, 100), (100, 100), (26, 100), (25, 25), (8, 25), (7, 7), (3, 7), (2, 2), (1, 1)]
)
def test_a_batch_has_the_rows_of_its_budget_or_a_part_of_them(texts, rows):
    assert shapes(64, 800).rows(8, texts) == rows
    assert shapes(64, 800, devices=8).rows(8, 8 * texts) == 8 * rows
    assert shapes(512, 100, devices=2).rows(512, 9) == 2  # below the budget of a text, still one a device


def test_every_text_is_in_one_batch_which_keeps_the_budget():
    texts = np.random.default_rng(0).integers(1, 64, 250).tolist()
    found = list(batches(lengths_to_tokens, texts, shapes(64, 256), window=100))
    np.testing.assert_array_equal(np.sort(np.concatenate([batch.indices for batch in found])), np.arange(250))
    for places, rows, tokens in found:
        assert tokens.ids.shape == tokens.mask.shape
        assert len(tokens.ids) == rows
        assert tokens.ids.size <= 256
        for place, ids, mask in zip(places, tokens.ids, tokens.mask, strict=False):
            assert mask.sum() == texts[place]
            assert (ids[mask] == texts[place]).all()
            assert not ids[~mask].any()


def test_little_is_padded_among_many_texts_and_no_texts_give_no_batch():
    texts = np.random.default_rng(0).integers(4, 64, 5000).tolist()
    found = list(batches(lengths_to_tokens, texts, shapes(64, 2048)))
    assert sum(batch.inputs.ids.size for batch in found) < 1.15 * sum(texts)
    assert len({batch.inputs.ids.shape for batch in found}) <= 12 + 1  # a rung each, and the last batch
    assert not list(batches(lengths_to_tokens, [], shapes(64, 256)))


def test_all_items_come_in_their_order_and_errors_are_raised_at_their_item():
    assert list(prefetch(range(10), 3)) == list(range(10))
    assert list(prefetch([], 3)) == []

    def items():
        yield 1
        raise KeyError("broken")

    coming = prefetch(items(), 3)
    assert next(coming) == 1
    with pytest.raises(KeyError, match="broken"):
        next(coming)


def test_items_are_made_in_a_thread_before_they_are_asked_for():
    made, third = [], threading.Event()

    def items():
        for item in range(5):
            made.append((item, threading.current_thread() is threading.main_thread()))
            if item == 2:
                third.set()
            yield item

    coming = prefetch(items(), 2)
    assert next(coming) == 0
    assert third.wait(5)  # two more than were asked for, and not three
    assert made == [(0, False), (1, False), (2, False)]
    coming.close()
