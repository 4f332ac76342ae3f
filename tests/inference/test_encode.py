import threading

import jax
import numpy as np
import pytest
from helpers import mesh_of
from tiny_models import recording

from endx_jax import load
from endx_jax.batch import Tokens
from endx_jax.inference.encode import EmbeddingFormat, TextEncoder
from endx_jax.models import SIDES
from endx_jax.numerics import dequantize

TEXTS = ["the cat sat", "", "a dog " * 30, "on the mat the cat sat on the dog", "cat"]
LONG = "the cat on the mat " * 30  # cut to the limit of 64 tokens


def encoder_of(model, towers=None, *, devices=1, **options) -> TextEncoder:
    """An encoder of a model, or of other towers, that has compiled nothing."""
    mesh = mesh_of(devices)
    return TextEncoder(towers or model.encoder.model, model.encoder.processors, mesh, **options)


def one_by_one(model, texts):
    return np.stack([model.encoder(model.params, "question", [text])[0] for text in texts])


def plainly(model, texts):
    """Each text for itself, without any padding."""
    table = model.encoder.processors["answer"](texts)
    encode = jax.jit(lambda ids: model.encoder.model.encode(model.params, "answer", Tokens(ids, ids >= 0)))
    rows = [table.ids[start:stop] for start, stop in zip(table.offsets, table.offsets[1:], strict=False)]
    return np.concatenate([encode(row[None]) for row in rows])


def test_equal_to_texts_without_padding(tiny_bert):
    model = load(tiny_bert)
    texts = ["the cat sat", "", LONG]
    expected = plainly(model, texts)
    np.testing.assert_allclose(model.encoder(model.params, "answer", texts), expected, atol=1e-5)
    assert np.ptp(expected, axis=0).max() > 0.1


@pytest.mark.parametrize(("devices", "batch_size"), [(8, 3), (1, 64)])
def test_order_is_kept_whatever_the_batch_and_the_devices(model, devices, batch_size):
    texts, encoder = TEXTS * 5, encoder_of(model, devices=devices)
    params = model.params if devices == 8 else jax.device_get(model.params)
    expected = np.tile(one_by_one(model, TEXTS), (5, 1))
    embeddings = encoder(params, "question", texts, batch_size=batch_size)
    np.testing.assert_allclose(embeddings, expected, atol=1e-6)
    assert embeddings.dtype == np.float32


def test_few_programs_are_compiled_and_kept(model):
    traced, threads = [], set()

    def record(side, tokens):
        traced.append((side, *tokens.ids.shape))
        threads.add(threading.current_thread())

    encoder = encoder_of(model, recording(model.encoder.model, record), batch_size=2)
    random = np.random.default_rng(0)
    texts = ["cat " * n for n in random.integers(0, 15, 300)]
    params = jax.device_get(model.params)
    first = encoder(params, "question", texts)
    # Lengths 2 to 16, so four widths; each has 128 // width rows, and the last batch may have fewer.
    assert {("question", 128 // width, width) for width in (4, 8, 12, 16)} <= encoder.compiled
    assert set(traced) == encoder.compiled
    assert len(traced) <= 5
    assert threading.current_thread() not in threads  # ahead of use
    before = len(traced)
    np.testing.assert_array_equal(encoder(params, "answer", texts), first)  # one tower for both, compiled once
    assert len(traced) == before


def test_programs_are_compiled_under_the_callers_settings(model):
    seen = []
    towers = recording(model.encoder.model, lambda *_: seen.append(jax.config.jax_default_matmul_precision))
    encoder = encoder_of(model, towers)
    with jax.default_matmul_precision("highest"):
        encoder(jax.device_get(model.params), "question", ["the cat"])
    assert seen == ["highest"]


def test_the_bar_tells_of_a_compilation_once(model, capsys):
    encoder, note = encoder_of(model), "programs to compile (first use): 1"
    for new in (True, False):
        encoder(jax.device_get(model.params), "question", [LONG], progress=True)
        assert (note in capsys.readouterr().err) == new


def test_towers_of_their_own_are_told_apart(model):
    encoder, apart = encoder_of(model), {side: jax.device_get(model.params["shared"]) for side in SIDES}
    apart["answer"] = jax.tree.map(lambda leaf: leaf + 0.1, apart["answer"])
    question, answer = (encoder(apart, side, ["the cat"]) for side in SIDES)
    assert np.abs(question - answer).max() > 1e-3
    np.testing.assert_allclose(question, encoder(jax.device_get(model.params), "question", ["the cat"]), atol=1e-6)


def test_no_texts_give_no_rows(model):
    assert model.encoder(model.params, "question", []).shape == (0, 32)
    codes, scales = model.encoder(model.params, "question", [], output=EmbeddingFormat(width=8, precision="int8"))
    assert (codes.shape, codes.dtype, scales.shape) == ((0, 8), np.int8, (0,))


@pytest.mark.parametrize(("precision", "off"), [("bfloat16", 2**-8), ("float16", 2**-11), ("int8", 1 / 254)])
def test_rounded_to_a_precision_on_the_device(model, precision, off):
    exact = model.encoder(model.params, "question", TEXTS)
    found = model.encoder(model.params, "question", TEXTS, output=EmbeddingFormat(precision=precision))
    if precision == "int8":
        assert (found.codes.dtype, found.scales.shape) == (np.int8, (len(TEXTS),))
        found = dequantize(found)
    else:
        assert found.dtype == precision
    largest = np.abs(exact).max(axis=1, keepdims=True)
    assert 0 < np.abs(found.astype(np.float32) - exact).max() <= (off * largest).max() * 1.001
    if precision == "int8":  # cut before they are normalised before they are rounded
        cut = model.encoder(
            model.params, "question", TEXTS, output=EmbeddingFormat(8, normalize=True, precision="int8")
        )
        unit = exact[:, :8] / np.linalg.norm(exact[:, :8], axis=1, keepdims=True)
        np.testing.assert_allclose(dequantize(cut), unit, atol=1.01 / 254)
        np.testing.assert_array_equal(np.abs(cut.codes).max(axis=1), 127)
