"""What every loss of the package keeps: finite values and gradients at the edges, and its precision."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import without_metrics

from endx_jax import losses
from endx_jax.losses import Ceiling, Options, Prefixes

in_batch_softmax = without_metrics(losses.in_batch_softmax)
in_batch_sigmoid = without_metrics(losses.in_batch_sigmoid)
sampled_matching = without_metrics(losses.sampled_matching)
triplet = without_metrics(losses.triplet)

B, E = 6, 4
DUPLICATES = jnp.array([0, 0, 0, 1, 1, 2])

HARD_IDS = jnp.array([[0, 3], [4, -1], [3, 3], [-1, -1], [2, 4], [1, 0]])


def with_hard_negatives(question, answer, **settings):
    """Each question's hard negatives are the opposite of its own answer and another's answer; the missing are NaN."""
    hard = jnp.stack([-answer, jnp.roll(answer, 1, axis=0)], axis=1)
    hard = jnp.where(HARD_IDS[:, :, None] < 0, jnp.nan, hard)
    return in_batch_softmax(question, answer, hard_negatives=hard, hard_negative_ids=HARD_IDS, **settings)


DRAWN = jnp.array([[1, 3], [4, 1], [0, 2], [5, 1], [0, 0], [2, 3]])
POSITIVES = jnp.array([[0, 3], [0, -1], [0, 4], [1, -1], [-1, -1], [2, 0]])
SOME = {"direction": "sum", "answer_id": DUPLICATES, "positive_ids": POSITIVES}
ALL_SAME = {"direction": "sum", "answer_id": jnp.zeros(B, jnp.int32)}

PREFIXES = Options(Prefixes((2, 4)), ceiling=Ceiling(1, 0.1))

# Each takes (question [B, E], answer [B, E], where bool [B]) and gives a scalar.
LOSSES = {
    name: functools.partial(loss, **options)
    for name, loss, options in (
        ("both directions", in_batch_softmax, {"direction": "mean"}),
        ("some masked", in_batch_softmax, SOME | {"question_id": DUPLICATES}),
        ("every negative masked", in_batch_softmax, ALL_SAME),
        ("hard negatives", with_hard_negatives, SOME),
        ("every hard negative masked", with_hard_negatives, SOME | {"positive_ids": jnp.tile(jnp.arange(5), (B, 1))}),
        ("in tiles", with_hard_negatives, SOME | {"tile": 4}),
        ("in tiles, every negative masked", in_batch_softmax, ALL_SAME | {"tile": 4}),
        ("prefixes, in tiles", in_batch_softmax, {"options": PREFIXES, "tile": 4}),
        ("matched, squared errors", sampled_matching, {"drawn": DRAWN, "answer_id": DUPLICATES}),
        ("matched, cross-entropy", sampled_matching, {"drawn": DRAWN, "kind": "bce"}),
        ("sigmoid", in_batch_sigmoid, {"answer_id": DUPLICATES, "tile": 4}),
        ("triplet", triplet, {"direction": "sum", "answer_id": DUPLICATES}),
        ("triplet, in tiles", triplet, {"tile": 4}),
        ("triplet, every negative masked", triplet, ALL_SAME),
        ("quadratic regression", without_metrics(losses.quadratic_regression_conditional), {"margin": 1e-4}),
    )
}


def normal(scale: float = 1.0, dtype=np.float32) -> tuple:
    draw = np.random.default_rng(0)
    return tuple((scale * draw.normal(size=(B, E))).astype(dtype) for _ in range(2))


# Scores of +-1e4, whose exponentials overflow even float64: right answers win by far, or lose by far.
APART = 100 * np.where(np.arange(B)[:, None] % 2 == 0, 1.0, -1.0) * np.eye(1, E)

SITUATIONS = {
    "ordinary": (*normal(), None),
    "large scores": (*normal(100.0), None),
    "right answers win by 1e4": (APART, APART, None),
    "right answers lose by 1e4": (APART, -APART, None),
    "coincident points": (np.ones((B, E)), np.ones((B, E)), None),
    "zero vectors": (np.zeros((B, E)), np.zeros((B, E)), None),
    "no pair counts": (*normal(), np.zeros(B, bool)),
    "no pair counts, large scores": (APART, -APART, np.zeros(B, bool)),
    "one pair counts": (*normal(100.0), np.arange(B) == 2),
}


@pytest.mark.parametrize(
    "dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_values_and_gradients_are_finite_and_zero_where_no_pair_counts(loss, dtype):
    def compute(question, answer, where):
        return loss(question, answer, where=where)

    compute = jax.jit(jax.value_and_grad(compute, argnums=(0, 1)))
    for situation, (question, answer, where) in SITUATIONS.items():
        where = np.ones(B, bool) if where is None else where
        value, gradients = compute(jnp.asarray(question, dtype), jnp.asarray(answer, dtype), where)
        assert value.dtype == jnp.float32, situation
        assert value >= 0, situation
        chex.assert_tree_all_finite((value, gradients))
        assert {gradient.dtype for gradient in gradients} == {jnp.dtype(dtype)}, situation
        if not where.any():
            chex.assert_trees_all_equal((value, gradients), jax.tree.map(jnp.zeros_like, (value, gradients)))


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_float64_stays_float64(loss):
    with jax.enable_x64(True):
        question, answer = map(jnp.asarray, normal(dtype=np.float64))
        assert jax.eval_shape(loss, question, answer).dtype == jnp.float64


@pytest.mark.parametrize("name", ["in tiles", "sigmoid", "matched, cross-entropy", "triplet", "quadratic regression"])
def test_bfloat16_embeddings_are_computed_with_in_float32(name):
    question, answer = (jnp.asarray(x, jnp.bfloat16) for x in normal())
    loss, wide = LOSSES[name], [x.astype(jnp.float32) for x in (question, answer)]
    np.testing.assert_array_equal(*jax.jit(lambda *pairs: [loss(*pair) for pair in pairs])((question, answer), wide))
