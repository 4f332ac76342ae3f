"""Towers as folders hold them: what both sides name is shared, and the rest apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import initial_params, padded, texts
from refusals import check_refusal
from tiny_bert import WIDTH
from tiny_modules import write_routes

from endx_jax import pretrained
from endx_jax.models import SIDES
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder, fill_in, finished_towers


def groups(params) -> dict:
    return {place: set(tree) for place, tree in params.items()}


ENCODER = {"token_embedder", "encoder"}
APART, PROJECTED = (dict.fromkeys(SIDES, frozenset(groups)) for groups in (ENCODER, ("projection",)))


@pytest.mark.parametrize(
    ("query", "document", "after", "expected"),
    [
        ("Transformer Pooling", "Transformer Pooling", "", {"shared": ENCODER}),
        ("Transformer Pooling", "Transformer Pooling-cls", "Normalize", {"shared": ENCODER}),
        ("Transformer Pooling", "Transformer-b Pooling", "Dense-6 Normalize", APART | {"shared": {"projection"}}),
        ("Transformer Pooling Dense-6", "Transformer Pooling Dense-6-b", "", PROJECTED | {"shared": ENCODER}),
    ],
)
def test_parts_that_both_sides_name_are_shared(tmp_path, query, document, after, expected):
    query, document, after = query.split(), document.split(), after.split()
    sources = pretrained.load_sides(write_routes(tmp_path, query, document, after))
    model, params = finished_towers(sources)
    assert groups(params) == expected
    for side, modules in (("question", query), ("answer", document)):
        found = model.tower_params(params, side)["token_embedder"]["embedding"]
        np.testing.assert_array_equal(np.asarray(found), sources[side].params()["token_embedder"]["embedding"])
        assert model.tower(side).normalize == ("Normalize" in after)
        assert model.tower(side).pooling.__name__ == ("first" if "Pooling-cls" in modules else "mean")
    shapes = jax.tree.map(jnp.shape, params)
    assert shapes == jax.tree.map(jnp.shape, jax.eval_shape(model.init, jax.random.key(0)))


def test_towers_of_two_widths_or_two_encoders_are_refused(tmp_path):
    folder = write_routes(tmp_path, ["Transformer", "Pooling"], ["Transformer-b", "Pooling"])
    check_refusal(lambda: pretrained.load_encoder(str(folder)), "/Transformer-b")
    folder = write_routes(tmp_path / "widths", ["Transformer", "Pooling", "Dense-6"], ["Transformer", "Pooling"])
    check_refusal(lambda: finished_towers(pretrained.load_sides(folder)), "6 dimensions", "32 dimensions")


def test_training_starts_from_the_folder_s_projection(tmp_path):
    modules = ["Transformer", "Pooling", "Dense-6"]
    source = pretrained.load_encoder(str(write_routes(tmp_path, modules, modules)))
    kernel, tokens = source.params()["projection"]["kernel"], padded(texts((5, 3)), 8)

    def built(**settings):
        filled = fill_in(ModelSettings(**settings), source)
        sides = {"question": source, "answer": source}
        model = build_dual_encoder(filled, sides)
        params = initial_params(model, filled, sides, jax.random.key(0))
        embeddings = jax.eval_shape(lambda p: model.encode(p, "question", tokens), params)
        assert embeddings.shape == (2, filled.projection or WIDTH)
        return params["shared"].get("projection", {}).get("kernel")

    np.testing.assert_array_equal(built(), kernel)
    np.testing.assert_array_equal(built(projection=6), kernel)
    assert built(projection=5).shape == (WIDTH, 5)
    assert np.abs(built(projection=6, pooling="first") - kernel).max() > 0.1  # it was for means
    assert built(pooling="multi_hop") is None
