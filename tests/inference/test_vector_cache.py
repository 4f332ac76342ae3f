import dataclasses

import flax.linen as nn
import jax
import numpy as np
import pytest
from tiny_models import make_model

from endx_jax.batch import Vectors
from endx_jax.inference import vector_cache
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.vector_cache import VectorCache, base_vectors
from endx_jax.models.sharing import SHARINGS

VALUES = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
TEXTS = ("the cat", "a dog on the mat", "where is it", "who", "cat")


@pytest.fixture
def made():
    return []


@pytest.fixture
def blocks(made):
    def give():
        made.append(1)
        yield VALUES[:4]
        yield VALUES[4:]

    return give


def test_vectors_are_made_once_and_mapped(tmp_path, blocks, made):
    first = VectorCache(tmp_path).vectors("k", (6, 2, 2), blocks)
    again = VectorCache(tmp_path).vectors("k", (6, 2, 2), blocks)
    np.testing.assert_array_equal(first, VALUES)
    np.testing.assert_array_equal(again, VALUES)
    assert len(made) == 1
    assert isinstance(again.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        again[0] = 1
    VectorCache(tmp_path).vectors("other", (6, 2, 2), blocks)
    assert len(made) == 2
    VectorCache(tmp_path).vectors("k", (6, 4), lambda: (block.reshape(-1, 4) for block in blocks()))
    assert len(made) == 3  # an entry of another shape is made again


def change(byte):
    def damage(file):
        contents = bytearray(file.read_bytes())
        contents[byte] ^= 1
        file.write_bytes(contents)

    return damage


def cut(length):
    return lambda file: file.write_bytes(file.read_bytes()[:length])


@pytest.mark.parametrize("damage", [change(-1), change(200), change(20), cut(-8), cut(0)])
def test_a_damaged_entry_is_made_again(tmp_path, blocks, made, damage):
    cache = VectorCache(tmp_path)
    cache.vectors("k", (6, 2, 2), blocks)
    (file,) = tmp_path.iterdir()
    damage(file)
    np.testing.assert_array_equal(cache.vectors("k", (6, 2, 2), blocks), VALUES)
    assert len(made) == 2
    cache.vectors("k", (6, 2, 2), blocks)
    assert len(made) == 2


def test_vectors_stay_in_memory_without_a_writable_cache(tmp_path, blocks):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="nothing is cached for the next run"):
        found = VectorCache(tmp_path / "file").vectors("k", (6, 2, 2), blocks)
    np.testing.assert_array_equal(found, VALUES)


class Shift(nn.Module):
    """A head that adds one number to all."""

    @nn.compact
    def __call__(self, base, dropout_keys=None):
        return base + self.param("by", nn.initializers.ones, (1, 1))


@pytest.fixture(scope="module")
def model(tiny_bert):
    return make_model(tiny_bert)


def with_heads(model, question, answer):
    """The model with a head on either side, and its base encoder."""
    towers = model.encoder.model
    one = towers.question.clone(head=Shift())
    both = dataclasses.replace(towers, question=one, answer=one, sharing=SHARINGS["sde"])
    by = {"question": question, "answer": answer}
    params = model.params | {side: {"head": {"by": np.full((1, 1), by[side], np.float32)}} for side in by}
    encoder = TextEncoder(both, model.encoder.processors, model.encoder.mesh, part=both.base)
    return both, params, encoder


def test_heads_make_of_kept_vectors_what_the_whole_tower_makes_of_texts(model, tmp_path):
    both, params, base = with_heads(model, 2.0, -3.0)
    whole = TextEncoder(both, model.encoder.processors, model.encoder.mesh)
    cache = VectorCache(tmp_path)
    for side in ("question", "answer"):
        kept = base_vectors(base, params, side, TEXTS, cache)
        found = both.encode(params, side, Vectors(kept))
        np.testing.assert_allclose(found, whole(params, side, TEXTS), atol=1e-5)


def test_they_are_computed_once_whatever_the_heads_are(model, tmp_path, monkeypatch):
    monkeypatch.setattr(vector_cache, "BLOCK", 2)
    cache = VectorCache(tmp_path)
    _, params, base = with_heads(model, 2.0, -3.0)
    first = base_vectors(base, params, "question", TEXTS, cache)
    np.testing.assert_allclose(first, base_vectors(base, params, "question", TEXTS, VectorCache()), atol=1e-6)
    _, params, base = with_heads(model, 5.0, 1.0)
    monkeypatch.setattr(TextEncoder, "__call__", None)
    np.testing.assert_array_equal(base_vectors(base, params, "question", TEXTS, cache), first)


@pytest.mark.parametrize("change", ["texts", "side", "weights"])
def test_others_are_other_entries(model, tmp_path, change):
    cache = VectorCache(tmp_path)
    _, params, base = with_heads(model, 1.0, 1.0)
    base_vectors(base, params, "question", TEXTS, cache)
    if change == "weights":
        params = jax.tree.map(lambda leaf: leaf + np.float32(0.01), params)
    texts = TEXTS[::-1] if change == "texts" else TEXTS
    base_vectors(base, params, "answer" if change == "side" else "question", texts, cache)
    assert len([*tmp_path.iterdir()]) == 2
