"""A Cross-VAE end to end on tiny towers and text: what is logged, what is reported, and what is left at inference."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import logged_steps, trained_params

import endx_jax
from endx_jax.experiment.run import run
from endx_jax.experiment.saved_model import read_model
from endx_jax.methods.vae import VaeSettings
from endx_jax.parallel import MeshSettings, make_mesh


@pytest.mark.slow
def test_a_cross_vae_from_its_first_step_to_its_use(tmp_path, bert_config):
    bert_config.model.encoder, bert_config.model.new_encoder.width, bert_config.model.projection = "gru", 8, 6
    bert_config.objective = dataclasses.asdict(
        VaeSettings(decoder_width=8, anneal_epochs=0.0, anneal_steps=4, initial_deviation=0.1)
    )
    bert_config.train.tower_chunk, bert_config.train.steps, bert_config.train.stop_at_step = 1, 4, 2
    bert_config.evaluation.batch_size = 6  # which does not divide over the eight devices
    assert run(bert_config, tmp_path) is None
    bert_config.train.stop_at_step = 0
    run(bert_config, tmp_path)
    lines = logged_steps(tmp_path)
    assert [line["kl_weight"] for line in lines] == [0, 0.25, 0.5, 0.75]
    for line in lines:
        parts = line["matching_loss"] + sum(
            line[f"nll/{side}"] + line["kl_weight"] * line[f"kl/{side}"] for side in ("question", "answer")
        )
        np.testing.assert_allclose(line["loss"], parts, rtol=1e-5)
    model, params = read_model(tmp_path), trained_params(tmp_path)
    assert set(params) == {"dual_encoder", "deviation", "decoder"}
    loaded = endx_jax.load(tmp_path)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(params["dual_encoder"])
    texts = ["where is the cat 3", "who"]
    expected = model.text_encoder(make_mesh(MeshSettings()))(params["dual_encoder"], "question", texts)
    np.testing.assert_allclose(loaded.encode_query(texts), expected, atol=1e-6)
    np.testing.assert_array_equal(loaded.encode_query(texts), loaded.encode_query(texts))
