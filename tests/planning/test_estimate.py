"""Estimates against real arrays on a mesh, and against the program that training compiles."""

import jax
import jax.numpy as jnp
import pytest
from tiny_bert import tiny_recipe

from endx_jax.experiment.config import resolve
from endx_jax.experiment.prepare import begin, prepare
from endx_jax.methods.dual.recipes import t5
from endx_jax.parallel import MeshSettings, batch_sharding, make_mesh, to_global
from endx_jax.parallel.memory import bytes_held
from endx_jax.planning.compiled import compile_step
from endx_jax.planning.estimate import embeddings_of, estimate
from endx_jax.planning.subject import Texts, outline_run, read_texts

NO_DATA = Texts(None, "not read")
SPLIT = {"mesh": {"fsdp": 2, "tensor": 2}}


def on_first_device(tree) -> int:
    """Bytes that really lie there."""
    device = jax.devices()[0]
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == device)


@pytest.fixture
def config(tiny_bert, pairs_csv):
    return tiny_recipe(tiny_bert, pairs_csv)


@pytest.mark.parametrize(
    ("optimizer", "mesh"),
    [
        pytest.param("adamw", SPLIT, marks=pytest.mark.slow),
        pytest.param("adafactor", {}, marks=pytest.mark.slow),
        pytest.param("sgd", {"mesh": {"fsdp": 8}}, marks=pytest.mark.slow),
    ],
)
def test_state_batch_and_embeddings_are_those_of_a_real_run(config, tmp_path, optimizer, mesh):
    config.optimizer.name = optimizer
    config.model.projection = 16
    run = prepare(config.to_dict() | mesh, tmp_path)
    _, state, _ = begin(run)
    settings = run.model.settings
    subject = outline_run(settings, read_texts(settings), for_chips=False).on(None)
    memory = estimate(subject).memory
    assert memory.parameters == memory.gradients == on_first_device(state.params)
    assert memory.optimizer == on_first_device((state.step, state.opt_state))
    size = settings.train.global_batch_size
    batch = to_global(run.stream[0], run.mesh, size)
    assert jax.tree.map(lambda x: x.shape, subject.batch) == jax.tree.map(lambda x: x.shape, batch)
    assert memory.batch == on_first_device(batch)
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), size)
    with_rows = jax.tree.map(lambda x: x.sharding, embeddings_of(subject))
    embed = jax.jit(
        lambda p, rows: run.objective.execution.map_rows(run.objective.embed, p, rows), out_shardings=with_rows
    )
    assert memory.embeddings == on_first_device(embed(state.params, (batch, keys)))


@pytest.mark.slow
def test_the_compiled_step_is_the_one_that_training_runs(config, tmp_path):
    run = prepare(config, tmp_path)
    _, _, step = begin(run)
    (program,) = step.programs.values()
    settings = run.model.settings
    compiled = compile_step(outline_run(settings, read_texts(settings), for_chips=False).on(None))
    memory = program.memory_analysis()
    assert compiled.arguments == memory.argument_size_in_bytes
    assert compiled.temporaries == memory.temp_size_in_bytes
    assert sum(times for times, _ in compiled.collectives.values()) > 0


@pytest.mark.slow
def test_the_peak_is_near_the_compiled_one(config):
    config.train.global_batch_size = 32
    for mesh in ({}, SPLIT):
        subject = outline_run(resolve(config.to_dict() | mesh), NO_DATA, for_chips=False).on(None)
        compiled = compile_step(subject)
        found = estimate(subject)
        memory = found.memory
        assert memory.parameters + memory.optimizer + memory.batch == compiled.arguments
        assert memory.peak == pytest.approx(compiled.peak, rel=0.3)


def test_without_data_texts_are_as_long_as_they_may_be(config):
    config.data.path = "nowhere.csv"
    settings = resolve(config)
    texts = read_texts(settings)
    assert texts.pairs is None
    assert "nowhere.csv" in texts.why
    batch = outline_run(settings, texts).on(None).batch
    assert batch.question.ids.shape == (16, 24)
    assert batch.question.packing.tokens == 2 * 24  # of two rows on each of eight devices


def test_with_data_the_batches_are_those_that_training_plans(config, tmp_path):
    texts = read_texts(resolve(config))
    assert texts.pairs is not None
    outline = outline_run(resolve(config), texts)
    assert outline.model.settings.model.dtype == "bfloat16"
    assert outline.on(None).train_plan.stream.profiles() == prepare(config, tmp_path).stream.profiles()


@pytest.mark.slow
def test_a_published_model_needs_no_files():
    config = t5.get_config("small,sde")
    config.mesh.fsdp, config.mesh.tensor = 4, 2
    config.train.tower_chunk = 0
    subject = outline_run(resolve(config), NO_DATA).on(None)
    traffic = estimate(subject).traffic
    # Each matrix of a layer is gathered in bfloat16: four of attention and three of the MLP, forwards and backwards.
    of_layers = [one for one in traffic if one.what == "parameters" and one.axes == ("fsdp",)]
    layers = 8 * (4 * 512 * 384 + 3 * 512 * 1024)
    assert sum(one.bytes for one in of_layers) >= 2 * 2 * layers * 2 / 2  # both sides, twice, halves by `tensor`


def test_bytes_are_those_of_a_device():
    rows = batch_sharding(make_mesh(MeshSettings()))
    assert bytes_held(jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=rows)) == 4 * 2 * 3
