"""Trains one's own towers with a loss over the batch of all devices, inside `jax.shard_map`.

XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu python examples/sharded_loss.py
"""

import functools

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from endx_jax import losses

BATCH, WIDTH, STEPS = 64, 16, 200
mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def embed(params, side, inputs):
    """Returns unit embeddings [R, E] of inputs [R, W]; here a matrix for each side, in your program any network."""
    vectors = inputs @ params[side]
    return vectors / jnp.linalg.norm(vectors, axis=1, keepdims=True)


@functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data"), P("data"), P("data")), out_specs=P())
def loss_fn(params, questions, answers, answer_id):
    """Returns the loss of the whole batch; each device has some rows, and all answers are its candidates."""
    embedded = embed(params, "question", questions), embed(params, "answer", answers)
    loss, metrics = losses.in_batch_softmax(*embedded, temperature=0.1, answer_id=answer_id, axis_name="data")
    return loss, metrics["in_batch_accuracy"]


@jax.jit
def train_step(params, opt_state, *batch):
    """Updates the parameters on one batch."""
    (loss, accuracy), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params, *batch)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss, accuracy


# Answers are their questions, turned by a matrix that the towers have to learn. The last two answers are the same text.
keys = jax.random.split(jax.random.key(0), 4)
questions = jax.random.normal(keys[0], (BATCH, WIDTH))
answers = questions @ jax.random.orthogonal(keys[1], WIDTH)
answers = answers.at[-1].set(answers[-2])
answer_id = jnp.arange(BATCH).at[-1].set(BATCH - 2)
params = {
    side: jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5
    for side, key in zip(("question", "answer"), keys[2:], strict=True)
}
optimizer = optax.adam(0.01)
opt_state = optimizer.init(params)
print(f"{jax.device_count()} devices, {BATCH // jax.device_count()} pairs each")
for step in range(STEPS + 1):
    params, opt_state, loss, accuracy = train_step(params, opt_state, questions, answers, answer_id)
    if step % 100 == 0:
        print(f"step {step:3d}  loss {loss:.3f}  accuracy {accuracy:.2f}")
