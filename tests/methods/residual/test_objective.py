"""The triplet objective: what reaches its loss, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_params, tower, without_metrics

from endx_jax import losses
from endx_jax.batch import Batch, Tokens, Vectors
from endx_jax.losses import quadratic_regression_conditional
from endx_jax.methods.residual import ResidualHeads, ResidualObjective, ResidualSettings
from endx_jax.models import SIDES, DualEncoder
from endx_jax.parallel.execution import Execution

HEAD = ResidualHeads(("fcrr",), width=8, filters=1, dropout=0.1)
TOWER = tower(head=HEAD)
MODEL = DualEncoder(TOWER, TOWER)
WITHOUT_DROPOUT = TOWER.clone(head=HEAD.clone(dropout=0.0))
DRAW = np.random.default_rng(0)
VECTORS = {side: Vectors(jnp.asarray(DRAW.normal(size=(6, 16)), jnp.float32)) for side in SIDES}
BATCH = Batch(
    **VECTORS,
    question_id=jnp.arange(6),
    answer_id=jnp.array([0, 0, 1, 2, 3, 3]),
    positive_ids=jnp.array([[0, -1], [0, 2], [1, -1], [2, -1], [3, -1], [3, -1]]),
)

triplet = without_metrics(losses.triplet)
TOKENS = Tokens(jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2), bool))
PARAMS = MODEL.join({side: random_params(TOWER, TOKENS, seed=n) for n, side in enumerate(SIDES)})


def compute(execution=None, one=TOWER, **settings):
    objective = ResidualObjective(DualEncoder(one, one), ResidualSettings(**settings))
    objective = objective.for_run(execution or Execution(), 1.0)
    return jax.jit(objective)({"dual_encoder": PARAMS}, BATCH, jax.random.key(0, impl="threefry2x32"), jnp.int32(0))


def test_the_loss_is_that_of_the_embeddings():
    ids = {name: getattr(BATCH, name) for name in ("question_id", "answer_id", "positive_ids")}

    @jax.jit
    def expected():
        pair = [MODEL.encode(PARAMS, side, VECTORS[side]) for side in SIDES]
        regression, _ = quadratic_regression_conditional(*pair, margin=0.3)
        return triplet(*pair, margin=0.3, direction="sum", **ids), regression

    margin_loss, regression = expected()
    loss, metrics = compute(one=WITHOUT_DROPOUT, margin=0.3, direction="sum")
    np.testing.assert_allclose(loss, margin_loss, rtol=1e-5)
    assert metrics["masked_fraction"] == pytest.approx(5 / 30)  # four of equal answers, and one known to be right
    loss, metrics = compute(one=WITHOUT_DROPOUT, loss="quadratic_regression_conditional", margin=0.3)
    np.testing.assert_allclose(loss, regression, rtol=1e-5)
    assert set(metrics) == {"active_fraction"}


def test_chunks_and_tiles_change_nothing():
    loss, metrics = compute()
    cut, of_cut = compute(Execution(tower_chunk=4, loss_tile=2))
    np.testing.assert_allclose(cut, loss, rtol=1e-5)
    assert of_cut.keys() == metrics.keys()
