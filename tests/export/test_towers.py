import dataclasses

import chex
import jax
import numpy as np

import endx_jax
from endx_jax.export.run import export
from endx_jax.export.towers import Towers


def test_half_precision_towers_become_plain_ones(models):
    towers = Towers.of(models["sde"])
    encoder = towers.dual_encoder.question.encoder
    assert (encoder.scan_layers, encoder.remat, encoder.dtype) == (False, "none", np.float32)
    expected = jax.eval_shape(towers.dual_encoder.init, jax.random.key(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(towers.params, expected)


def test_shared_parts_and_widths_of_towers(models):
    towers = {name: Towers.of(models[name]) for name in ("sde", "ade", "ade_ste", "ade_spl", "gru")}
    assert [name for name in towers if towers[name].shared_encoder] == ["sde"]
    assert {name: towers[name].width for name in towers} == {"sde": 8, "ade": 8, "ade_ste": 32, "ade_spl": 8, "gru": 8}
    spl, ade = (towers[name] for name in ("ade_spl", "ade"))
    assert spl.projection("question") is spl.projection("answer")
    kernels = [ade.projection(side)["kernel"] for side in ("question", "answer")]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.01
    assert towers["ade_ste"].projection("question") is None


def test_cosine_and_norm_are_two_things(models, tmp_path):
    model = dataclasses.replace(models["ade_ste"], cosine=True)
    export(model, "sentence-transformers", tmp_path)
    loaded = endx_jax.load(tmp_path)
    assert loaded.cosine
    assert not loaded.encoder.model.question.normalize
    assert "without normalization, compared by cosine" in (tmp_path / "README.md").read_text()
