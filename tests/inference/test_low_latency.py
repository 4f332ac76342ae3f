import dataclasses

import jax
import numpy as np
import pytest
from tiny_models import make_model, recording

from endx_jax.inference.encode import EmbeddingFormat, TextEncoder
from endx_jax.inference.low_latency import LowLatencyEncoder, Programs, program_width

TEXTS = ["the cat sat", "", "a dog " * 30, "on the mat the cat sat on the dog", "cat", "🐈 " * 40] * 3
PLAN = Programs(rows=(4, 1), tokens=128, call=24)


@pytest.fixture
def encoder(model):
    """Texts have at most 64 tokens."""
    return LowLatencyEncoder(model.encoder, model.params, programs=PLAN)


def cut(*lengths, compiled=()):
    found = PLAN.split(np.array(lengths), 64, compiled)
    return [(sorted(places.tolist()), rows, width) for places, rows, width in found]


def recorded(model):
    """An encoder, and the shapes of the programs that it compiles."""
    traced = []
    towers = recording(model.encoder.model, lambda side, tokens: traced.append((side, *tokens.ids.shape)))
    encoder = TextEncoder(towers, model.encoder.processors, model.encoder.mesh)
    return LowLatencyEncoder(encoder, model.params, programs=PLAN), traced


@pytest.mark.parametrize("count", [1, 2, 5, len(TEXTS)])
def test_embeddings_are_those_of_the_text_encoder(model, encoder, count):
    found = encoder("question", TEXTS[:count])
    np.testing.assert_allclose(found.embeddings, model.encode_query(TEXTS[:count]), atol=1e-6)
    np.testing.assert_array_equal(found.tokens, model.encoder.processors["question"](TEXTS[:count]).lengths)


def test_texts_share_a_call_where_that_is_cheapest(encoder):
    assert cut(14) == [([0], 1, 16)]
    # One call of four rows costs 24 + 4 * 16 tokens; two of one row cost 2 * (24 + 16), and three 3 * (24 + 16).
    assert cut(14, 15) == [([1], 1, 16), ([0], 1, 16)]
    assert cut(14, 15, 16) == [([0, 1, 2], 4, 16)]
    # A long text beside short ones is computed for itself: 24 + 64 + 24 + 4 * 16, and not 24 + 4 * 32 + ...
    assert cut(14, 64, 15, 16) == [([1], 1, 64), ([0, 2, 3], 4, 16)]
    assert cut(48, 48, 48, 48) == [([n], 1, 48) for n in range(4)]
    assert encoder.shapes == [
        *(("question", rows, width) for width in (8, 12, 16, 24, 32) for rows in (1, 4)),
        ("question", 1, 48),
        ("question", 1, 64),
    ]


def test_texts_run_in_the_programs_that_are_warm_and_longer_ones_in_their_own(model):
    warm = (1, 32), (4, 24)
    assert cut(10, 30, 11, 12, 60, compiled=warm) == [([4], 1, 64), ([1], 1, 32), ([0, 2, 3], 4, 24)]
    encoder, traced = recorded(model)
    for shape in warm:
        encoder.warm_up(("question", *shape))
    found = encoder("question", TEXTS[:5])
    np.testing.assert_allclose(found.embeddings, model.encode_query(TEXTS[:5]), atol=1e-6)
    assert traced == [*(("question", *shape) for shape in warm), ("question", 1, 64)]


def test_one_tower_has_programs_for_the_longer_of_its_sides(model):
    processors = model.encoder.processors | {
        "answer": dataclasses.replace(model.encoder.processors["answer"], length=20)
    }
    encoder = LowLatencyEncoder(TextEncoder(model.encoder.model, processors, model.encoder.mesh), model.params)
    assert max(width for _, _, width in encoder.shapes) == 64


def test_programs_for_very_long_texts_are_compiled_when_one_comes(model):
    encoder = LowLatencyEncoder(model.encoder, model.params, programs=PLAN._replace(prepared=32))
    assert max(width for _, _, width in encoder.shapes) == 32
    np.testing.assert_allclose(encoder("question", TEXTS[:3])[0], model.encode_query(TEXTS[:3]), atol=1e-6)
    assert [program_width(n, 32_000) for n in (1, 17, 8193, 24_577)] == [8, 24, 12_288, 32_000]


def test_both_sides_of_a_siamese_model_have_one_copy_of_rounded_kernels(tiny_bert):
    model = make_model(tiny_bert, product_dtype="bfloat16")
    towers = model.encoder.model

    def rounded(arrays) -> int:
        return sum(array.dtype == "bfloat16" for array in arrays)

    kernels, before = rounded(jax.tree.leaves(towers.encoding_params(model.params, "question"))), jax.live_arrays()
    encoder = LowLatencyEncoder(model.encoder, model.params)
    assert rounded(jax.live_arrays()) - rounded(before) == kernels > 0
    assert encoder.shapes


def test_nothing_is_compiled_once_it_is_warm(model):
    encoder, traced = recorded(model)
    for shape in encoder.shapes:
        encoder.warm_up(shape)
    assert traced == encoder.shapes
    for side in ("question", "answer"):
        encoder(side, TEXTS)
    assert traced == encoder.shapes


def test_towers_of_their_own_are_told_apart(model, encoder):
    apart = {side: jax.device_get(model.params["shared"]) for side in ("question", "answer")}
    apart["answer"] = jax.tree.map(lambda leaf: leaf + 0.1, apart["answer"])
    found = LowLatencyEncoder(model.encoder, apart)
    question, answer = (found(side, ["the cat"]).embeddings for side in ("question", "answer"))
    assert np.abs(question - answer).max() > 1e-3
    np.testing.assert_allclose(question, encoder("question", ["the cat"]).embeddings, atol=1e-6)


def test_embeddings_are_finished_as_asked(model):
    found = LowLatencyEncoder(model.encoder, model.params, EmbeddingFormat(5, normalize=True))("question", TEXTS[:2])
    expected = model.encode_query(TEXTS[:2], truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(found.embeddings, expected, atol=1e-6)
