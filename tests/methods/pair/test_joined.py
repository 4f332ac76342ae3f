"""Two texts as one."""

import numpy as np

from endx_jax.data.token_tables import TokenTable
from endx_jax.methods.pair.batches import join


def table(*rows):
    return TokenTable.from_lengths(
        np.concatenate([*map(np.asarray, rows)]).astype(np.int32), np.array([*map(len, rows)]), 0
    )


def test_the_seconds_first_token_is_left_out_and_its_place_is_known():
    """101 begins and 102 ends a text."""
    questions = table([101, 1, 102], [101, 2, 3, 102])
    answers = table([101, 7, 8, 102], [101, 102])
    joined = join(questions, answers, np.array([[1, 0], [0, 0], [1, 1]]))
    rows = [joined.ids[a:b].tolist() for a, b in zip(joined.offsets, joined.offsets[1:], strict=False)]
    assert rows == [[101, 2, 3, 102, 7, 8, 102], [101, 1, 102, 7, 8, 102], [101, 2, 3, 102, 102]]
    assert joined.second.tolist() == [4, 3, 4]
    tokens = joined.pad(np.array([2, 1]), 8)
    assert tokens.ids.tolist() == [[101, 2, 3, 102, 102, 0, 0, 0], [101, 1, 102, 7, 8, 102, 0, 0]]
    assert tokens.mask.sum(1).tolist() == [5, 6]
    assert tokens.second.tolist() == [4, 3]


def test_texts_that_are_not_joined_have_no_second():
    assert table([1, 2]).pad(np.array([0]), 2).second is None
