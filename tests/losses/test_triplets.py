"""The triplet loss: its hard mining against a brute-force loop, in tiles and split over devices against itself."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import split_over

from endx_jax.losses import quadratic_regression_conditional, triplet
from endx_jax.losses.softmax import WEIGHTS

B, E, MARGIN = 24, 5, 0.5
TILE = 5  # the 24 columns fill four tiles and four fifths of one


def drawn(dtype=np.float64) -> dict:
    """Unit questions near their answers; ids of which many are equal and some unknown; NaN where pairs do not count."""
    draw = np.random.default_rng(0)
    where = np.arange(B) % 5 != 3
    answer = draw.normal(size=(B, E))
    embeddings = {"question": answer + 0.5 * draw.normal(size=(B, E)), "answer": answer}
    for side, vectors in embeddings.items():
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        embeddings[side] = np.where(where[:, None], unit, np.nan).astype(dtype)
    ids = {
        "question_id": draw.integers(-1, 60, B).astype(np.int32),
        "answer_id": draw.integers(-1, 40, B).astype(np.int32),
        "positive_ids": draw.integers(-1, 99, (B, 3)).astype(np.int32),
    }
    return embeddings | ids | {"where": where}


def by_brute_force(question, answer, question_id, answer_id, positive_ids, where) -> dict:
    """The loss of each anchor that counts, by direction, and the share of right pairs, by loops over all pairs."""

    def right(i, j):
        """Whether answer j is right for question i: the same paragraph is never a negative."""
        same_question = question_id[i] == question_id[j] and question_id[i] >= 0
        same_answer = answer_id[i] == answer_id[j] and answer_id[i] >= 0
        return i == j or same_question or same_answer or (answer_id[j] >= 0 and answer_id[j] in positive_ids[i])

    def loss(anchor, pairs):
        """Pairs are (candidate, whether it is right)."""
        far = max(np.sum((anchor - candidate) ** 2) for candidate, is_right in pairs if is_right)
        near = min((np.sum((anchor - candidate) ** 2) for candidate, is_right in pairs if not is_right), default=np.inf)
        return max(far - near + MARGIN, 0.0)

    counting = np.flatnonzero(where)
    return {
        "question_to_answer": [loss(question[i], [(answer[j], right(i, j)) for j in counting]) for i in counting],
        "answer_to_question": [loss(answer[j], [(question[i], right(i, j)) for i in counting]) for j in counting],
        "masked": np.mean([right(i, j) for i in counting for j in counting if i != j]),
    }


def split_loss(direction, tile, devices):
    """The loss and metrics of `drawn` arguments; over several devices the batch is split."""
    axis_name = "data" if devices else None

    def compute(question, answer, rest):
        cut = {"direction": direction, "tile": tile, "axis_name": axis_name}
        return triplet(question, answer, margin=MARGIN, **rest, **cut)

    return split_over(devices, compute) if devices else compute


@functools.cache
def found(direction, tile=None, devices=None) -> tuple:
    """((loss, metrics), gradients), in float64."""
    with jax.enable_x64(True):
        rest = drawn()
        question, answer = rest.pop("question"), rest.pop("answer")
        compute = jax.jit(jax.value_and_grad(split_loss(direction, tile, devices), (0, 1), has_aux=True))
        return jax.device_get(compute(question, answer, rest))


@pytest.mark.parametrize(("direction", "tile"), [("question_to_answer", None), ("sum", TILE)])
def test_mining_is_what_loops_over_all_pairs_find(direction, tile):
    losses, weights = by_brute_force(**drawn()), WEIGHTS[direction]
    (loss, metrics), _ = found(direction, tile)
    np.testing.assert_allclose(metrics["masked_fraction"], losses.pop("masked"))
    expected = sum(weight * np.mean(of) for weight, of in zip(weights, losses.values(), strict=True))
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    assert metrics["masked_fraction"] > 0
    anchors = np.asarray(losses["question_to_answer"])
    assert 0 < metrics["in_batch_accuracy"] < metrics["active_fraction"] < 1
    np.testing.assert_allclose(metrics["active_fraction"], np.mean(anchors > 0))
    np.testing.assert_allclose(metrics["in_batch_accuracy"], np.mean(anchors < MARGIN))


@pytest.mark.parametrize(("tile", "devices"), [(None, None), (2, 8), (None, 8)])
def test_in_tiles_and_split_over_devices_it_is_the_same(tile, devices):
    chex.assert_trees_all_close(found("sum", tile, devices), found("sum", TILE), rtol=0, atol=1e-12)


def test_the_gradient_pulls_at_the_hardest_pairs_alone():
    question = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    answer = jnp.array([[0.8, 0.6], [0.8, 0.6], [0.0, -1.0]])
    loss = functools.partial(triplet, margin=2.0, answer_id=jnp.array([0, 0, 1]))
    (value, _), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(question, answer)
    # Squared distances to [0.8, 0.6] and [0, -1]: 0.4 and 2, 0.8 and 4, 0.08 and 3.6.
    np.testing.assert_allclose(value, (0.4 - 2 + 2 + 0 + (3.6 - 0.08 + 2)) / 3, rtol=1e-6)
    # Of |q - p+|^2 - |q - p-|^2 it is 2 (p- - p+); the second question is far enough from its negative.
    pulls = 2 * jnp.array([[-0.8, -1.6], [0.0, 0.0], [0.8, 1.6]]) / 3
    np.testing.assert_allclose(gradient, pulls, atol=1e-6)


@pytest.mark.parametrize("direction", ["question_to_answer", "answer_to_question"])
@pytest.mark.parametrize("tile", [None, 3])
def test_a_collapsed_model_has_accuracy_0_and_the_margin_as_its_loss(direction, tile):
    one_point = jnp.full((B, E), 0.3)
    compute = jax.jit(functools.partial(triplet, margin=MARGIN, direction=direction, tile=tile))
    loss, metrics = compute(one_point, one_point)
    assert float(loss) == MARGIN
    assert metrics == {"in_batch_accuracy": 0, "active_fraction": 1, "masked_fraction": 0}


def test_an_anchor_without_negatives_is_right_and_has_no_loss():
    one_point = jnp.full((2, E), 0.3)
    loss, metrics = jax.jit(triplet)(one_point, one_point, answer_id=jnp.zeros(2, jnp.int32))
    assert loss == 0
    assert metrics == {"in_batch_accuracy": 1, "active_fraction": 0, "masked_fraction": 1}


def test_the_first_of_equally_hard_candidates_is_taken():
    """Squared distances of all questions to the answers: 1 4 1 4 1 9; answers 0, 1, 3 are equal, and 2, 4, 5."""
    answer = jnp.array([[1.0], [2.0], [-1.0], [-2.0], [1.0], [3.0]])
    known = {"answer_id": jnp.array([7, 7, 8, 7, 8, 8])}
    to_answer = jax.jit(jax.grad(lambda x: triplet(jnp.zeros((6, 1)), x, margin=9.0, **known)[0]))(answer)
    # Farthest right answers: 1 of 1 and 3, and 5. Nearest negatives: 2 of 2 and 4, and 0.
    np.testing.assert_array_equal(jnp.flatnonzero(to_answer[:, 0]), [0, 1, 2, 5])


def test_quadratic_regression_conditional_is_the_distance_beyond_the_margin():
    question = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [jnp.nan, 0.0]])
    answer = jnp.array([[0.0, 1.0], [0.8, 0.6], [0.0, 1.0], [1.0, 0.0]])
    where = jnp.array([True, True, True, False])

    @jax.jit
    def compute(margin):
        return quadratic_regression_conditional(question, answer, margin=margin, where=where)

    # Squared distances 2, 0.4 and 0.
    for margin, expected, active in ((0.3, 2.4, 2), (0.5, 2.0, 1), (2.5, 0.0, 0)):
        loss, metrics = compute(margin)
        np.testing.assert_allclose(loss, expected / 3, rtol=1e-6)
        np.testing.assert_allclose(metrics["active_fraction"], active / 3, rtol=1e-6)
