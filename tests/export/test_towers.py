import dataclasses

import chex
import jax
import numpy as np

import endx_jax
from endx_jax.export.run import export
from endx_jax.export.towers import one_tower, plain, projection
from endx_jax.models import SIDES


def test_half_precision_towers_become_plain_ones(models):
    model = plain(models["sde"])
    for tower in (model.encoder.model.question, model.encoder.model.answer):
        assert tower.token_embedder.dtype == np.float32
        encoder = tower.encoder
        assert (encoder.scan_layers, encoder.remat, encoder.dtype) == (False, "none", np.float32)
    expected = jax.eval_shape(model.encoder.model.init, jax.random.key(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(model.params, expected)


def test_shared_parts_and_widths_of_towers(models):
    exported = {name: plain(models[name]) for name in ("sde", "ade", "ade_ste", "ade_spl", "gru")}
    assert [name for name, model in exported.items() if one_tower(model)] == ["sde"]
    widths = {name: model.width for name, model in exported.items()}
    assert widths == {"sde": 8, "ade": 8, "ade_ste": 32, "ade_spl": 8, "gru": 8}
    spl, ade = ([projection(exported[name], side) for side in SIDES] for name in ("ade_spl", "ade"))
    assert spl[0] is spl[1]
    assert np.abs(ade[0]["kernel"] - ade[1]["kernel"]).max() > 0.01
    assert projection(exported["ade_ste"], "question") is None


def test_cosine_and_norm_are_two_things(models, tmp_path):
    model = dataclasses.replace(models["ade_ste"], cosine=True)
    export(model, "sentence-transformers", tmp_path)
    loaded = endx_jax.load(tmp_path)
    assert loaded.cosine
    assert not loaded.encoder.model.question.normalize
    assert "without normalization, compared by cosine" in (tmp_path / "README.md").read_text()
