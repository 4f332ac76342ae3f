import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
from helpers import times
from tiny_models import make_model

from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.head_encoder import HeadEncoder
from endx_jax.inference.vector_cache import VectorCache
from endx_jax.models.sharing import SHARINGS

TEXTS = ("the cat", "a dog on the mat", "where is it", "who", "cat")


class Shift(nn.Module):
    """A head that adds one number to all."""

    @nn.compact
    def __call__(self, base, dropout_keys=None):
        return base + self.param("by", nn.initializers.ones, (1, 1))


@pytest.fixture(scope="module")
def model(tiny_bert):
    return make_model(tiny_bert)


def with_heads(model, question, answer):
    """The encoder of the model with a head on either side, and its parameters."""
    towers = model.encoder.model
    one = towers.question.clone(head=Shift())
    both = dataclasses.replace(towers, question=one, answer=one, sharing=SHARINGS["sde"])
    by = {"question": question, "answer": answer}
    params = model.params | {side: {"head": {"by": np.full((1, 1), by[side], np.float32)}} for side in by}
    return TextEncoder(both, model.encoder.processors, model.encoder.mesh), params


def test_heads_make_of_kept_vectors_what_the_whole_tower_makes_of_texts(model, tmp_path):
    whole, params = with_heads(model, 2.0, -3.0)
    heads = HeadEncoder(whole, params, VectorCache(tmp_path))
    for side in ("question", "answer"):
        np.testing.assert_allclose(heads(params, side, TEXTS), whole(params, side, TEXTS), atol=1e-5)
    assert heads.identity(params) == whole.identity(params)


def test_they_are_computed_once_whatever_the_heads_are(model, tmp_path):
    first = HeadEncoder(*with_heads(model, 2.0, -3.0), VectorCache(tmp_path)).vectors("question", TEXTS)
    uncached = HeadEncoder(*with_heads(model, 2.0, -3.0), VectorCache()).vectors("question", TEXTS)
    np.testing.assert_allclose(first, uncached, atol=1e-6)
    written = times(tmp_path)
    again = HeadEncoder(*with_heads(model, 5.0, 1.0), VectorCache(tmp_path)).vectors("question", TEXTS)
    np.testing.assert_array_equal(again, first)
    assert (times(tmp_path), len(written)) == (written, 1)


@pytest.mark.parametrize("change", ["texts", "side", "weights"])
def test_others_are_other_entries(model, tmp_path, change):
    encoder, params = with_heads(model, 1.0, 1.0)
    HeadEncoder(encoder, params, VectorCache(tmp_path)).vectors("question", TEXTS)
    if change == "weights":
        params = jax.tree.map(lambda leaf: leaf + np.float32(0.01), params)
    texts, side = TEXTS[::-1] if change == "texts" else TEXTS, "answer" if change == "side" else "question"
    HeadEncoder(encoder, params, VectorCache(tmp_path)).vectors(side, texts)
    assert len([*tmp_path.iterdir()]) == 2
