"""`endx plan` compiles the very program that training compiles on a topology."""

from accelerator_programs import devices_or_skip
from tiny_bert import tiny_recipe

from endx_jax.experiment import prepare as preparation
from endx_jax.experiment.config import resolve
from endx_jax.parallel.memory import DeviceMemory
from endx_jax.parallel.mesh import make_mesh
from endx_jax.planning.compiled import trace_step
from endx_jax.planning.runs import plan_run, read_texts
from endx_jax.planning.topologies import topology_named
from endx_jax.training.step import abstract_batch


def test_plan_and_training_lower_the_same_bytes(tiny_bert, pairs_csv, tmp_path, monkeypatch):
    devices, chip = devices_or_skip("v5e:2x2"), topology_named("v5e:2x2").chip
    config = tiny_recipe(tiny_bert, pairs_csv)
    planned = plan_run(resolve(config), read_texts(resolve(config)), chip, devices=devices)

    monkeypatch.setattr(preparation, "make_mesh", lambda settings: make_mesh(settings, devices))
    monkeypatch.setattr(preparation, "measure", lambda: DeviceMemory(chip.memory))
    run = preparation.prepare_run(config, tmp_path)
    (batch,) = run.stream.profiles()
    lowered = run.train_plan.train_step.lower(run.train_plan.state, abstract_batch(batch, run.mesh))
    assert lowered.as_text("hlo") == trace_step(planned).lower().as_text("hlo")
