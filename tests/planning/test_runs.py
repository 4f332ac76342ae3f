"""The planned step against real arrays on a mesh, and against the program that training compiles."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest
from helpers import written
from tiny_bert import WIDTH

from endx_jax.experiment.compile_step import compile_and_restore
from endx_jax.experiment.config import resolve
from endx_jax.experiment.run import prepare_run
from endx_jax.methods.config import load_recipe
from endx_jax.methods.residual import ResidualSettings
from endx_jax.parallel import to_global
from endx_jax.planning.chips import CHIPS
from endx_jax.planning.compiled import compile_step
from endx_jax.planning.plan import on_chip
from endx_jax.planning.runs import RunPairs, plan_run, read_texts

SPLIT = {"mesh": {"fsdp": 2, "tensor": 2}}


def on_first_device(tree) -> int:
    """Bytes that really lie there."""
    device = jax.devices()[0]
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == device)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "mesh"), [("adamw", SPLIT), ("adafactor", {}), ("sgd", {"mesh": {"fsdp": 8}})])
def test_state_and_batch_are_those_of_a_real_run(config, tmp_path, optimizer, mesh):
    config.optimizer.name = optimizer
    config.model.update(encoder="", projection=16)
    run = prepare_run(config.to_dict() | mesh, tmp_path)
    _, state, _ = compile_and_restore(run.plan)
    settings = run.settings
    planned = plan_run(settings, read_texts(settings))
    work = on_chip(planned, CHIPS["v4"])
    assert work.parameters == on_first_device(state.params)
    assert work.optimizer == on_first_device((state.step, state.opt_state))
    batch = to_global(run.plan.stream[0], run.plan.mesh, settings.train.global_batch_size)
    assert jax.tree.map(lambda x: x.shape, planned.largest_batch) == jax.tree.map(lambda x: x.shape, batch)
    assert work.batch == on_first_device(batch)


@pytest.mark.parametrize(("texts", "size"), [(True, 16), (False, 64)])
def test_a_run_whose_batch_is_not_set_is_planned(config, texts, size):
    config.train.update(global_batch_size=0, steps=0, epochs=0.0)
    settings = resolve(config)
    planned = plan_run(settings, read_texts(settings) if texts else RunPairs(None))
    assert planned.settings.train.global_batch_size == size


def test_a_run_that_distils_is_planned_without_its_data(config):
    config.objective.distillation.loss, config.data.hard_negatives, config.train.global_batch_size = "margin_mse", 2, 8
    settings = resolve(config)
    assert plan_run(settings, RunPairs(None)).padded[0].extra["teacher"].shape == (8, 3)


def test_heads_on_frozen_towers_are_planned_on_vectors_of_their_width(config):
    config.objective = dataclasses.asdict(ResidualSettings())
    batch = plan_run(resolve(config), RunPairs(None)).largest_batch
    assert batch.question.values.shape == batch.answer.values.shape == (16, WIDTH)


def test_a_run_on_stored_tokens_is_planned_with_as_many_pairs_as_it_trains_on(config, tmp_path):
    test = written(tmp_path / "test.jsonl", [{"question": f"what is new {n}", "answer": f"new {n}"} for n in range(20)])
    config.data.update(tokens=str(tmp_path / "tokens"), test_path=str(test), tokenizing_processes=1)
    config.data.update(max_train_pairs=20, validation_fraction=0.5)
    run = prepare_run(config, tmp_path / "run")
    assert len(read_texts(run.settings).pairs) == len(run.plan.stream.pairs) == 20


@pytest.mark.parametrize(("guide", "width"), [("", WIDTH), ("all-MiniLM-L6-v2", 384)])
def test_the_embeddings_of_a_guide_are_planned(config, tiny_bert, guide, width):
    config.objective.contrastive.guide = guide or str(tiny_bert)
    planned = plan_run(resolve(config), RunPairs(None)).largest_batch.extra["guide"]
    assert planned.question.shape == planned.answer.shape == (16, width)


def without_sources(program):
    """The program without the tables of source lines, which hold the callers of the step."""
    tables = r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*"
    return re.sub(r" stack_frame_id=\d+", "", re.sub(tables, "", program, flags=re.MULTILINE))


@pytest.mark.slow
def test_the_compiled_step_is_the_one_that_training_runs(config, tmp_path):
    config.model.encoder = ""
    run = prepare_run(config, tmp_path)
    _, _, step = compile_and_restore(run.plan)
    (program,) = step.programs.values()
    settings = run.settings
    compiled = compile_step(plan_run(settings, read_texts(settings)))
    assert without_sources(compiled.text) == without_sources(program.as_text())
    memory = program.memory_analysis()
    assert (compiled.arguments, compiled.temporaries) == (memory.argument_size_in_bytes, memory.temp_size_in_bytes)
    assert not compiled.room
    assert compiled.donated > 0.9 * compiled.arguments
    # The gradient of all parameters is reduced once, and nothing in a loop.
    reduced = [one for one in compiled.collectives if one.kind == "all-reduce"]
    assert {one.loops for one in reduced} == {0}
    assert sum(one.times * one.bytes >= 4 * 15584 for one in reduced) == 1


def test_without_data_texts_are_as_long_as_they_may_be(config):
    config.data.path, config.model.encoder = "nowhere.csv", ""
    settings = resolve(config)
    texts = read_texts(settings)
    assert texts.pairs is None
    assert "nowhere.csv" in texts.why
    batch = plan_run(settings, texts).largest_batch
    assert batch.question.ids.shape == (16, 24)
    assert batch.question.packing.tokens == 2 * 24  # of two rows on each of eight devices


def test_with_data_the_batches_and_hard_negatives_are_those_that_training_plans(config, tmp_path):
    config.model.update(encoder="", sharing="ade")  # encoded in two passes on every platform
    texts = read_texts(resolve(config))
    assert texts.pairs is not None
    planned = plan_run(resolve(config), texts, CHIPS["v5e"])
    assert planned.execution.dtype == jnp.bfloat16
    assert planned.stream.profiles() == prepare_run(config, tmp_path).plan.stream.profiles()
    rows = [{"question": f"where {n}", "answer": f"here {n}", "negative": f"there {n}"} for n in range(64)]
    path = written(tmp_path / "triplets.jsonl", rows)
    config.data.path = str(path)
    settings = resolve(config)
    planned = plan_run(settings, read_texts(settings))
    assert planned.largest_batch.hard_negatives is not None
    assert planned.stream.profiles() == prepare_run(config, tmp_path / "run").plan.stream.profiles()


def test_split_matrices_are_not_expected_whole():
    config = load_recipe("t5").get_config("xxl,sde")  # 19 GB of parameters, split over eight devices
    config.model.remat = "full"
    planned = plan_run(resolve(config), RunPairs(None, "no data"), CHIPS["v5p"])
    work = on_chip(planned, CHIPS["v5p"])
    assert work.parameters == pytest.approx(2.39e9, rel=0.01)
    assert 2 * work.parameters < work.expected < 12e9
