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
# Of the answers, the questions' known answers, and the hard negatives; -1: none.
DUPLICATES, SAME = np.array([0, 0, 0, 1, 1, 2]), np.zeros(B, int)
POSITIVES = np.array([[0, 3], [0, -1], [0, 4], [1, -1], [-1, -1], [2, 0]])
HARD_IDS = np.array([[0, 3], [4, -1], [3, 3], [-1, -1], [2, 4], [1, 0]])
DRAWN = np.array([[1, 3], [4, 1], [0, 2], [5, 1], [0, 0], [2, 3]])
SOME = {"answer_id": DUPLICATES, "positive_ids": POSITIVES}


def with_hard_negatives(question, answer, hard_negative_ids, **settings):
    """Each question's hard negatives are the opposite of its own answer and another's answer; the missing are NaN."""
    hard = jnp.stack([-answer, jnp.roll(answer, 1, axis=0)], axis=1)
    hard = jnp.where(hard_negative_ids[:, :, None] < 0, jnp.nan, hard)
    return in_batch_softmax(question, answer, hard_negatives=hard, hard_negative_ids=hard_negative_ids, **settings)


PREFIXES = Options(Prefixes((2, 4)), ceiling=Ceiling(1, 0.1))
# Each takes (question [B, E], answer [B, E], where bool [B]) and ids, and gives a scalar.
FUNCTIONS = {
    name: functools.partial(loss, **options)
    for name, loss, options in (
        ("softmax", in_batch_softmax, {"direction": "mean"}),
        ("both", in_batch_softmax, {"direction": "sum"}),
        ("hard", with_hard_negatives, {"direction": "sum"}),
        ("hard, tiled", with_hard_negatives, {"direction": "sum", "tile": 4}),
        ("tiled", in_batch_softmax, {"direction": "sum", "tile": 4}),
        ("prefixes", in_batch_softmax, {"options": PREFIXES, "tile": 4}),
        ("mse", sampled_matching, {}),
        ("bce", sampled_matching, {"kind": "bce"}),
        ("sigmoid", in_batch_sigmoid, {"tile": 4}),
        ("triplet", triplet, {"direction": "sum"}),
        ("triplet, tiled", triplet, {"tile": 4}),
        ("regression", without_metrics(losses.quadratic_regression_conditional), {"margin": 1e-4}),
    )
}
LOSSES = {
    "both directions": ("softmax", {}),
    "some masked": ("both", SOME | {"question_id": DUPLICATES}),
    "every negative masked": ("both", SOME | {"answer_id": SAME, "question_id": np.arange(B)}),
    "hard negatives": ("hard", SOME | {"hard_negative_ids": HARD_IDS}),
    "every hard negative masked": ("hard", SOME | {"hard_negative_ids": POSITIVES}),
    "in tiles": ("hard, tiled", SOME | {"hard_negative_ids": HARD_IDS}),
    "in tiles, every negative masked": ("tiled", {"answer_id": SAME}),
    "prefixes, in tiles": ("prefixes", {}),
    "matched, squared errors": ("mse", {"drawn": DRAWN, "answer_id": DUPLICATES}),
    "matched, cross-entropy": ("bce", {"drawn": DRAWN}),
    "sigmoid": ("sigmoid", {"answer_id": DUPLICATES}),
    "triplet": ("triplet", {"answer_id": DUPLICATES}),
    "triplet, in tiles": ("triplet, tiled", {}),
    "triplet, every negative masked": ("triplet", {"answer_id": SAME}),
    "quadratic regression": ("regression", {}),
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


@functools.cache
def differentiated(name):
    def compute(question, answer, where, ids):
        return FUNCTIONS[name](question, answer, where=where, **ids)

    return jax.jit(jax.value_and_grad(compute, argnums=(0, 1)))


@pytest.mark.parametrize(
    "dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize(("name", "ids"), LOSSES.values(), ids=LOSSES)
def test_values_and_gradients_are_finite_and_zero_where_no_pair_counts(name, ids, dtype):
    for situation, (question, answer, where) in SITUATIONS.items():
        where = np.ones(B, bool) if where is None else where
        value, gradients = differentiated(name)(jnp.asarray(question, dtype), jnp.asarray(answer, dtype), where, ids)
        assert value.dtype == jnp.float32, situation
        assert value >= 0, situation
        chex.assert_tree_all_finite((value, gradients))
        assert {gradient.dtype for gradient in gradients} == {jnp.dtype(dtype)}, situation
        if not where.any():
            assert not any(np.any(x) for x in (value, *gradients)), situation


@pytest.mark.parametrize(("name", "ids"), LOSSES.values(), ids=LOSSES)
def test_float64_stays_float64(name, ids):
    with jax.enable_x64(True):
        found = jax.eval_shape(functools.partial(FUNCTIONS[name], **ids), *map(jnp.asarray, normal(dtype=np.float64)))
        assert found.dtype == jnp.float64


@pytest.mark.parametrize("case", ["in tiles", "sigmoid", "matched, cross-entropy", "triplet", "quadratic regression"])
def test_bfloat16_embeddings_are_computed_with_in_float32(case):
    (name, ids), pair = LOSSES[case], [jnp.asarray(x, jnp.bfloat16) for x in normal()]
    wide = [x.astype(jnp.float32) for x in pair]
    compute = jax.jit(lambda *pairs: [FUNCTIONS[name](*pair, **ids) for pair in pairs])
    np.testing.assert_array_equal(*compute(pair, wide))
