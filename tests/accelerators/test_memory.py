"""Memory of steps compiled for TPUs: the choice of chunks and rematerialisation, and the estimate from shapes."""

import dataclasses

import pytest
from accelerator_programs import devices_or_skip, plan_on
from tiny_bert import tiny_recipe, write_tiny_bert

from endx_jax.cli import train
from endx_jax.experiment.config import resolve
from endx_jax.planning.compiled import compile_step, compile_what_fits
from endx_jax.planning.runs import RunPairs, plan_run
from endx_jax.planning.topologies import topology_named


def test_activations_are_recomputed_where_the_step_does_not_fit(tmp_path):
    devices, chip = devices_or_skip("v5e:2x2"), topology_named("v5e:2x2").chip
    config = tiny_recipe(
        write_tiny_bert(tmp_path / "bert", num_hidden_layers=1, hidden_size=128, intermediate_size=512), "none.csv"
    )
    config.train.global_batch_size = 512
    run = resolve(config), RunPairs(None, "no data")
    whole = plan_run(*run, chip, devices=devices)
    assert whole.choice == (0, "none")

    little = dataclasses.replace(chip, memory=whole.expected_peak)
    found, compiled = compile_what_fits(plan_run(*run, little, devices=devices))
    assert found.choice in whole.choices[1:]
    assert compiled.peak <= 0.85 * little.memory


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bert_base_sde", "minilm", "t5:base,sde"])
def test_the_estimate_is_that_of_the_compiled_step(recipe):
    config, *_ = train.parse_arguments([f"--config={recipe}"])
    config.train.global_batch_size = 128
    config.model.remat = "none"
    train_plan = plan_on(config, "v5e:2x2")
    assert train_plan.expected_peak == pytest.approx(compile_step(train_plan).peak, rel=0.25)
