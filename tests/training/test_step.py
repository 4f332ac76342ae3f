"""A run's programs are compiled before its first batch is there, and serve all its batches."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import mesh_of
from refusals import check_refusal

from endx_jax.batch import Batch, Tokens
from endx_jax.data.batches.collator import BatchStream
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.methods.dual import DualObjective, DualSettings
from endx_jax.models import DualEncoder, TokenEmbedder, Tower
from endx_jax.parallel import state_shardings, to_global
from endx_jax.parallel.execution import Execution
from endx_jax.training.checkpoints import abstract
from endx_jax.training.compilation import compile_ahead, program_bytes
from endx_jax.training.optimizer import OptimizerSettings, make_optimizer, make_schedule
from endx_jax.training.step import TrainState, make_train_step, merge_frozen, split_frozen

B, STEPS = 16, 10
PARAMS = {"a": {"kernel": np.ones(2), "bias": np.full(2, 2.0)}, "b": {"kernel": np.full(2, 3.0)}}


class Encoder(nn.Module):
    """Looks at no other token, and asks for its rows as one that does."""

    def __call__(self, embedded, layout, dropout_keys=None):
        return jnp.tanh(layout.join([rows for rows, _, _ in layout.rows(embedded)]))


TOWER = Tower(TokenEmbedder(200, 4, initializer_range=1.0), Encoder())


@pytest.fixture(scope="module")
def stream(tiny_bert):
    """Sixty pairs of which some are long, so that there is more than one profile."""
    records = RetrievalSet.from_pairs((f"where is cat {i}", "the cat " * (1 + i % 9)) for i in range(60))
    tokenizer = Tokenizer(tiny_bert)
    pairs = records.tokenize({side: TextProcessor(tokenizer, 24) for side in ("question", "answer")})
    return BatchStream(pairs, seed=1, global_batch_size=B)


@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.slow), 8])
def test_batches_of_known_shapes_compile_nothing_and_others_do(stream, devices):
    mesh = mesh_of(devices)
    packed, optimizer, model = stream.without_padding(STEPS, shards=devices), optax.sgd(0.1), DualEncoder(TOWER, TOWER)
    objective = DualObjective(model, DualSettings(), Execution(mesh, packed=True))

    def create():
        return TrainState.create(objective.init(jax.random.key(1), model.init(jax.random.key(0))), optimizer)

    shapes = jax.eval_shape(create)
    shardings = state_shardings(shapes, mesh)
    create = jax.jit(create, out_shardings=shardings)
    traced = []
    schedule = lambda step: traced.append(step) or 0.1  # noqa: E731  # called once a program, when it is traced
    train_step = make_train_step(objective, optimizer, schedule, seed=0, shardings=shardings)
    step = compile_ahead(train_step, abstract(shapes, shardings), packed.profiles(), mesh)

    def train(batches):
        state, losses = create(), []
        for number in range(STEPS):
            state, metrics = step(state, to_global(batches[number], mesh, B))
            losses.append(metrics["loss"])
        return np.asarray(losses)

    traced.clear()
    found = train(packed)
    assert traced == []
    np.testing.assert_allclose(train(stream), found, rtol=1e-5)
    assert len(traced) == len({stream[step].answer.ids.shape for step in range(STEPS)}) > 0


def test_the_logged_learning_rate_is_the_one_of_the_update(stream):
    """SGD with a gradient of 1: each step lowers the parameter by the learning rate that the step logs."""
    settings = OptimizerSettings(name="sgd", learning_rate=1.0, warmup_steps=3, clip_norm=0.0)
    mesh, params = mesh_of(1), {"log_temperature": jnp.array(0.0)}
    optimizer = make_optimizer(settings, 7, params)
    state = TrainState.create(params, optimizer)
    shardings = state_shardings(state, mesh)

    def objective(params, batch, rng, step):
        return params["log_temperature"], {}

    step = make_train_step(objective, optimizer, make_schedule(settings, 7), seed=0, shardings=shardings)
    batch = to_global(stream[0], mesh, B)
    values, logged, given = [0.0], [], state
    for _ in range(7):
        state, metrics = step(state, batch)
        values.append(float(state.params["log_temperature"]))
        logged.append(float(metrics["learning_rate"]))
    expected = [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25]
    np.testing.assert_allclose(logged, expected, rtol=1e-6)
    np.testing.assert_allclose(-np.diff(values), expected, rtol=1e-6)
    assert given.params["log_temperature"].is_deleted()  # a step takes over the memory of its state
    assert (state.step.dtype, int(state.step)) == (jnp.int32, 7)


def test_a_result_in_the_memory_of_an_argument_takes_none():
    assert program_bytes(jax.jit(lambda x: x + 1, donate_argnums=0).lower(jnp.zeros(1000)).compile()) == 4000


def step_of(result):
    """Traces a step whose objective returns this."""
    optimizer = optax.sgd(0.1)
    step = make_train_step(lambda *_: result, optimizer, lambda _: 0.1, seed=0, shardings=None)
    jax.eval_shape(step, TrainState.create({"w": jnp.ones(2)}, optimizer), None)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: step_of((jnp.zeros(()), {"margin": jnp.zeros(8)})), ["'margin'", "objective", "(8,)"]),
        (lambda: step_of((jnp.zeros(8), {})), ["'loss'", "objective", "(8,)"]),
        (lambda: step_of(jnp.zeros(())), ["objective", "(loss, metrics"]),
        (lambda: split_frozen(PARAMS, ["a/", "token_embeder"]), ["optimizer.frozen", "'token_embeder'"]),
        (lambda: split_frozen(PARAMS, ["a/", "b/"]), ["optimizer.frozen", "every parameter"]),
    ],
)
def test_a_loss_that_is_no_number_and_patterns_that_freeze_nothing_or_all_are_refused(call, named):
    check_refusal(call, *named)


def test_parts_have_the_leaves_of_their_paths_and_merge_to_the_whole():
    trained, frozen = split_frozen(PARAMS, ["^a/k", "b/"])
    assert trained == {"a": {"kernel": None, "bias": PARAMS["a"]["bias"]}, "b": {"kernel": None}}
    assert frozen == {"a": {"kernel": PARAMS["a"]["kernel"], "bias": None}, "b": {"kernel": PARAMS["b"]["kernel"]}}
    chex.assert_trees_all_equal(merge_frozen(trained, frozen), PARAMS)
    trained, frozen = split_frozen(PARAMS, [])
    chex.assert_trees_all_equal(trained, PARAMS)
    assert jax.tree.leaves(frozen) == []


@pytest.mark.parametrize("frozen", [(), ("^b/",)])
def test_frozen_parameters_have_no_state_no_part_in_the_clipping_norm_and_stay_as_they_are(frozen):
    def objective(params, batch, rng, step):
        # Gradients: 3 for each of the two entries of a/kernel, 0 for a/bias, 4 for each of b/kernel.
        return 3 * params["a"]["kernel"].sum() + 4 * params["b"]["kernel"].sum(), {}

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.5), optax.scale_by_learning_rate(1.0))
    params = jax.tree.map(np.float32, PARAMS)
    state = TrainState.create(params, optimizer, frozen)
    assert len(jax.tree.leaves(state.opt_state)) == 3 - len(frozen)
    step = make_train_step(objective, optimizer, lambda _: 1.0, seed=0, shardings=None, frozen=frozen)
    none = Tokens(ids=np.zeros((1, 1), np.int32), mask=np.ones((1, 1), bool))
    ids = np.zeros(1, np.int32)
    new, metrics = step(state, Batch(none, none, ids, ids, ids[:, None]))
    norm = np.sqrt(2 * 9 + 2 * 16) if not frozen else np.sqrt(2 * 9)
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-6)
    np.testing.assert_allclose(new.params["a"]["kernel"], 1 - 3 / norm, rtol=1e-6)
    np.testing.assert_array_equal(new.params["b"]["kernel"], np.float32(3 if frozen else 3 - 4 / norm))
