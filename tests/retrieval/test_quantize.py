import jax
import numpy as np

from endx_jax.retrieval.quantize import Quantized, dequantize, quantize
from endx_jax.retrieval.search import top_k


def test_values_are_whole_steps_of_the_largest_over_127():
    found = quantize(np.array([[127, -3, 0.6, 0.4], [-12.7, 0.0, 6.39, 0.06]], np.float32))
    np.testing.assert_array_equal(found.codes, [[127, -3, 1, 0], [-127, 0, 64, 1]])
    np.testing.assert_allclose(found.scales, [1, 0.1], rtol=1e-6)
    assert (found.codes.dtype, found.scales.dtype) == (np.int8, np.float32)


def test_no_value_moves_by_more_than_half_a_step():
    embeddings = np.random.default_rng(0).normal(size=(50, 32)).astype(np.float32)
    off = np.abs(dequantize(quantize(embeddings)) - embeddings)
    half_steps = np.abs(embeddings).max(axis=1, keepdims=True) / 254
    assert (off <= half_steps * 1.0001).all()
    assert off.max() > half_steps.min() / 2


def test_zero_stays_zero():
    found = quantize(np.zeros((1, 3), np.float32))
    np.testing.assert_array_equal(dequantize(found), [[0, 0, 0]])


def test_what_is_no_number_shows():
    found = dequantize(quantize(np.array([[1, np.nan], [np.inf, 1], [1, 2]], np.float32)))
    np.testing.assert_array_equal(np.isfinite(found).all(axis=1), [False, False, True])


def test_numpy_stays_numpy_and_jax_stays_jax():
    quantized = quantize(np.ones((2, 3), np.float32))
    assert isinstance(dequantize(quantized), jax.Array)
    assert isinstance(dequantize(Quantized(*map(np.asarray, quantized))), np.ndarray)


def test_search_finds_by_codes_what_it_finds_by_numbers():
    random = np.random.default_rng(1)
    candidates = random.normal(size=(2000, 64)).astype(np.float32)
    candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)
    questions = candidates[:100] + 0.15 * random.normal(size=(100, 64)).astype(np.float32)
    codes, scales = map(np.asarray, quantize(candidates))
    exact, rounded = top_k(questions, candidates, 10).rows, top_k(questions, codes, 10, scales=scales).rows
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(exact, rounded, strict=True)])
    assert 0.95 < recall < 1.0
    np.testing.assert_array_equal(exact[:, 0], rounded[:, 0])
