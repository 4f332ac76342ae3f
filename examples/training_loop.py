"""Trains linear towers with optax in a custom training loop, with only the losses of this library.

python examples/training_loop.py
"""

import jax
import jax.numpy as jnp
import optax

from endx_jax import losses
from endx_jax.numerics import l2_normalize

PAIRS, FEATURES, WIDTH, BATCH, STEPS = 4096, 64, 32, 128, 100


def make_pairs(key):
    """Returns question and answer features [PAIRS, FEATURES] that are projections of the same latent vectors."""
    latent_key, question_key, answer_key = jax.random.split(key, 3)
    latent = jax.random.normal(latent_key, (PAIRS, WIDTH))
    views = [jax.random.normal(view, (WIDTH, FEATURES)) for view in (question_key, answer_key)]
    return tuple(latent @ view for view in views)


def loss_fn(params, question, answer):
    """Returns the in-batch softmax loss of both towers' embeddings [B, WIDTH], and its metrics."""
    embedded = [l2_normalize(x @ params[side]) for x, side in ((question, "question"), (answer, "answer"))]
    return losses.in_batch_softmax(*embedded, temperature=0.05)


@jax.jit
def train_step(params, opt_state, question, answer):
    """Updates the parameters on one batch."""
    (loss, _), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params, question, answer)
    updates, opt_state = optimizer.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


optimizer = optax.adam(1e-2)
data_key, init_key, order_key = jax.random.split(jax.random.key(0), 3)
questions, answers = make_pairs(data_key)
params = {
    side: jax.random.normal(key, (FEATURES, WIDTH)) / jnp.sqrt(FEATURES)
    for side, key in zip(("question", "answer"), jax.random.split(init_key), strict=True)
}
opt_state = optimizer.init(params)
for step in range(STEPS):
    rows = jax.random.choice(jax.random.fold_in(order_key, step), PAIRS, (BATCH,), replace=False)
    params, opt_state, loss = train_step(params, opt_state, questions[rows], answers[rows])
    if step % 20 == 0 or step == STEPS - 1:
        print(f"step {step:3d}  loss {loss:.3f}")
