import numpy as np
import pytest
from refusals import check_refusal

from endx_jax.data.batches.ragged import Ragged, RaggedVectors, concatenate
from endx_jax.numerics import dequantize, quantize


@pytest.mark.parametrize("form", [np.asarray, lambda text: quantize(text, np)])
def test_vectors_of_texts_are_those_of_a_list(form):
    draw = np.random.default_rng(0)
    texts = [form(draw.standard_normal((length, 4)).astype(np.float32)) for length in (3, 0, 1, 5)]
    listed = [np.asarray(dequantize(text)) for text in texts]
    ragged = RaggedVectors.of(texts)
    assert (len(ragged), ragged.lengths.tolist()) == (4, [3, 0, 1, 5])
    for rows in (slice(1, 3), np.array([3, 0, 0]), slice(0, 0)):
        chosen = np.arange(4)[rows]
        found = [*ragged[rows].floats()]
        assert [text.tolist() for text in found] == [listed[row].tolist() for row in chosen]
    both = [*concatenate([ragged, ragged[2:]]).floats()]
    assert [text.tolist() for text in both] == [text.tolist() for text in [*listed, *listed[2:]]]
    values, mask = ragged.floats().pad(np.array([3, 1]), 3, 6)
    assert (values.shape, mask.sum(axis=1).tolist()) == ((3, 6, 4), [5, 0, 0])
    np.testing.assert_array_equal(values[0, :5], listed[3])
    check_refusal(lambda: RaggedVectors.of([np.ones((1, 2)), np.ones((1, 4))]), "2 and 4 dimensions")


def test_values_are_found_in_rows_of_any_length():
    draw = np.random.default_rng(0)
    rows = [sorted(draw.choice(50, size, replace=False).tolist()) for size in (0, 1, 2, 7, 30, 0, 50)]
    listed = Ragged.from_rows(rows)
    asked, wanted = draw.integers(len(rows), size=200), draw.integers(-1, 52, (200, 3))
    expected = [
        [listed.offsets[row] + rows[row].index(value) if value in rows[row] else -1 for value in own]
        for row, own in zip(asked, wanted, strict=True)
    ]
    np.testing.assert_array_equal(listed.find(asked, wanted), expected)
    assert (Ragged.from_rows([[], []]).find(np.array([0, 1]), np.array([[3], [-1]])) == -1).all()
