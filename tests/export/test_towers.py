import dataclasses

import chex
import jax
import numpy as np
import pytest
from helpers import one_line_error
from tiny_models import make_model

import endx_jax
from endx_jax.export.run import export
from endx_jax.export.towers import Towers
from endx_jax.models.pooling import POOLINGS
from endx_jax.models.tower import FUNCTIONS


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


def test_a_model_that_is_cut_is_refused(models):
    with one_line_error(r"tiny truncates embeddings to 4 dimensions \(truncate_dim\), which exports don't support"):
        Towers.of(dataclasses.replace(models["sde"], truncate_dim=4))


def test_cosine_and_norm_are_two_things(models, tmp_path):
    model = dataclasses.replace(models["ade_ste"], cosine=True)
    export(model, "sentence-transformers", tmp_path)
    loaded = endx_jax.load(tmp_path)
    assert loaded.cosine
    assert not loaded.encoder.model.question.normalize
    assert "without normalization, compared by cosine" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"encoder": "none"}, "token vectors without an encoder"),
        ({"layer_weights": (0.5, 0.5, 0.0)}, "a tower with layer_weights"),
        ({"encoder": "gru", "new_encoder": {"width": 8}}, "a new encoder .*"),
        ({"pooling": "multi_hop", "multi_hop": {"hops": 2}}, "multi-hop pooling"),
    ],
)
def test_a_tower_that_only_a_program_can_hold_is_refused(tiny_bert, tmp_path, settings, part):
    model = make_model(tiny_bert, **settings)
    with one_line_error(f"the format sentence-transformers does not support {part}: use --format=stablehlo"):
        export(model, "sentence-transformers", tmp_path)


@pytest.mark.parametrize("table", [(POOLINGS, "pooling"), (FUNCTIONS, "projection_function")])
def test_a_pooling_or_function_that_is_not_theirs_is_refused(tiny_bert, tmp_path, monkeypatch, table):
    names, key = table
    monkeypatch.setitem(names, "mine", lambda encodings, *mask: encodings.sum(axis=1) if mask else -encodings)
    model = make_model(tiny_bert, projection=8, **{key: "mine"})
    with one_line_error(f"sentence-transformers has no {key.replace('_', ' ')} 'mine': use --format=stablehlo"):
        export(model, "sentence-transformers", tmp_path)
