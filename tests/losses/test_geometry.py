"""Geometry alignment against visible arithmetic and a twin in plain NumPy."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import one_line_error, without_metrics

from endx_jax import losses
from endx_jax.losses import geometry_alignment
from endx_jax.losses.geometry import KERNELS, TERMS, WITH_WIDTH

embedding_regression = without_metrics(losses.embedding_regression)

ALL = dict.fromkeys(TERMS, 1.0)

# Two points a space and side, E = 1. Inner products of rows v and columns u: see the tests.
DUAL = (jnp.array([[1.0], [2.0]]), jnp.array([[3.0], [1.0]]))
CROSS = (jnp.array([[2.0], [1.0]]), jnp.array([[1.0], [0.0]]))


def bernoulli(p: float, q: float) -> float:
    """KL of two coins."""
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def found(terms=TERMS, dual=DUAL, cross=CROSS, **settings) -> dict[str, float]:
    loss = functools.partial(geometry_alignment, weights=dict.fromkeys(terms, 1.0), **settings)
    total, values = jax.jit(loss)(dual, cross)
    assert float(total) == pytest.approx(sum(map(float, values.values())), rel=1e-6)
    return {term: float(value) for term, value in values.items()}


def test_an_estimated_width_is_the_mean_squared_distance():
    # a|q as above: (4 + 0 + 1 + 1) / 4 and (1 + 4 + 0 + 1) / 4. q|q: four distances 0, 1, 1, 0, or two of 1.
    for kernel in ("sne", "gaussian"):
        estimated = found(["a|q", "q|q"], kernel=kernel)
        assert estimated == pytest.approx(
            found(["a|q", "q|q"], kernel=kernel, width={"a|q": 1.5, "q|q": 0.5}), rel=1e-5
        )
        assert estimated["q|q"] == pytest.approx(found(kernel=kernel, width={"a|q": (0.1, 3.0)})["q|q"])
    three = (jnp.array([[0.0], [1.0], [5.0]]),) * 2, (jnp.array([[0.0], [2.0], [3.0]]),) * 2
    # Squared distances off the diagonal: 1, 25, 16 and 4, 9, 1, each twice.
    given = found(["q|q"], *three, kernel="sne", diagonal=False, width={"q|q": (42 / 3, 14 / 3)})
    assert found(["q|q"], *three, kernel="sne", diagonal=False) == pytest.approx(given, rel=1e-5)


def test_a_visible_example_of_pkt():
    dual = (jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 3.0], [-1.0, 0.0]]))
    cross = (jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0, 0.0], [0.6, 0.8]]))
    # (cos + 1) / 2 from q to a: dual [.5, 0] and [1, .5]; cross [1, .8] and [.5, .9].
    value = bernoulli(0.5 / 1.4, 1 / 1.5)
    first = 1 / 1.8 * math.log(1 / 1.8 / 1) + 0.8 / 1.8 * math.log(0.8 / 1.8 / (1e-7 / 0.5))
    assert found(["a|q"], dual, cross, kernel="pkt") == pytest.approx({"a|q": (first + value) / 2}, rel=1e-5)


B = 7
WHERE = np.array([True, True, False, True, True, False, True])


def drawn() -> tuple:
    """Dual embeddings of 4 coordinates and cross embeddings of 3, off the origin, questions and answers apart."""
    draw = np.random.default_rng(1)
    return tuple(tuple(draw.normal(size=(B, width)) + shift for shift in (0.5, -0.2)) for width in (4, 3))


def twin(dual, cross, kernel, temperature=(1.0, 1.0), width=None, diagonal=True, reduction="batchmean", where=None):
    """The terms by loops over pairs; `width` is a (dual, cross) pair or None."""
    count = [i for i in range(len(dual[0])) if where is None or where[i]]
    terms = {}
    for term in TERMS:
        pairs = [(i, j) for i in count for j in count if diagonal or term in ("a|q", "q|a") or i != j]
        log_p = []
        for space, pair in enumerate((dual, cross)):
            u, v = (dict(zip("qa", pair, strict=True))[side] for side in term.split("|"))
            squares = {(i, j): np.sum((u[j] - v[i]) ** 2) for i, j in pairs}
            sigma2 = np.mean(list(squares.values())) if width is None else width[space]
            scores = {
                (i, j): {
                    "inner": u[j] @ v[i],
                    "sne": -squares[i, j] / (2 * sigma2),
                    "gaussian": math.exp(-squares[i, j] / (2 * sigma2)),
                    "pkt": math.log((u[j] @ v[i] / np.linalg.norm(u[j]) / np.linalg.norm(v[i]) + 1) / 2),
                }[kernel]
                / temperature[space]
                for i, j in pairs
            }
            normal = {i: math.log(sum(math.exp(scores[r, j]) for r, j in pairs if r == i)) for i in count}
            log_p.append({(i, j): scores[i, j] - normal[i] for i, j in pairs})
        total = sum(math.exp(log_p[1][place]) * (log_p[1][place] - log_p[0][place]) for place in pairs)
        terms[term] = total / (len(pairs) if reduction == "mean" else len(count))
    return terms


@pytest.mark.parametrize("kernel", KERNELS)
def test_values_are_the_twin_s(kernel):
    dual, cross = drawn()
    rich = {"temperature": (0.5, 0.7), "where": WHERE, "diagonal": False, "reduction": "mean"}
    rich |= {"width": (0.8, 2.5)} if kernel in WITH_WIDTH else {}
    for settings in ({}, {"diagonal": False}, rich):
        with jax.enable_x64(True):
            loss = functools.partial(geometry_alignment, weights=ALL, kernel=kernel, **settings)
            _, terms = jax.jit(loss)(dual, cross)
        chex.assert_trees_all_close(terms, twin(dual, cross, kernel, **settings), rtol=1e-11, atol=0)


def test_pkt_is_the_public_code_s_loss_but_for_its_epsilon():
    """Cosines in [0, 1], rows divided by their sums, the diagonal in, the mean over all entries."""
    dual, cross = drawn()

    def probabilities(x):
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        kernel = (x @ x.T + 1) / 2
        return kernel / kernel.sum(axis=1, keepdims=True)

    model, target = probabilities(dual[0]), probabilities(cross[0])
    expected = np.mean(target * np.log((target + 1e-7) / (model + 1e-7)))
    with jax.enable_x64(True):
        value = found(["q|q"], dual, cross, kernel="pkt", reduction="mean")["q|q"]
    assert value == pytest.approx(expected, rel=1e-5)


def test_regression_is_the_mean_squared_difference():
    # Differences of q: [1, 0], [0, 2], [5, 5]; of a: [0, 0], [1, 1], [0, 7].
    dual = jnp.array([[1.0, 0.0], [0.0, 2.0], [5.0, 5.0]]), jnp.array([[3.0, 3.0], [1.0, 1.0], [0.0, 7.0]])
    cross = jnp.zeros((3, 2)), jnp.array([[3.0, 3.0], [0.0, 0.0], [0.0, 0.0]])
    assert float(embedding_regression(dual, cross)) == pytest.approx((1 + 4 + 50 + 2 + 49) / 12)
    where = jnp.array([True, True, False])
    assert float(embedding_regression(dual, cross, where=where)) == pytest.approx((1 + 4 + 2) / 8)
    assert float(embedding_regression(dual, cross, where=jnp.zeros(3, bool))) == 0
    to_dual, to_cross = jax.grad(embedding_regression, (0, 1))(dual, cross)
    np.testing.assert_allclose(to_dual[0], dual[0] * 2 / 12, rtol=1e-6)
    assert not any(gradient.any() for gradient in to_cross)
    to_cross = jax.grad(functools.partial(embedding_regression, stop_gradient=False), 1)(dual, cross)
    np.testing.assert_allclose(to_cross[0], -to_dual[0], rtol=1e-6)


POINTS = (jnp.zeros((3, 2)), jnp.zeros((3, 2)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": "laplace"}, "kernel is 'laplace', which is none of inner, gaussian, sne, pkt"),
        ({"reduction": "sum"}, "reduction is 'sum', which is none of batchmean, mean"),
        ({"weights": {"q|d": 1.0}}, "weights names the term 'q|d', which is none of a|q, q|q, q|a, a|a"),
        ({"weights": {}}, "weights is empty; give one or more of the terms a|q, q|q, q|a, a|a"),
        ({"kernel": "sne", "width": {"qa": 1.0}}, "width names the term 'qa', which is none of"),
        ({"width": 1.0}, "width is given, but the kernel 'inner' has no width; only gaussian and sne do"),
        ({"axis_name": "data"}, "axis_name is given without tile"),
        ({"tile": 0}, "tile is 0; it must be at least 1"),
        (
            {"dual": (jnp.zeros((3, 2)), jnp.zeros((4, 2)))},
            r"dual answer has shape \(4, 2\); it must be \[B, E\], with B = 3 as in dual q",
        ),
        (
            {"cross": (jnp.zeros((2, 2)), jnp.zeros((2, 2)))},
            r"cross question has shape \(2, 2\); it must be \[B, F\], with B = 3 as in dual",
        ),
    ],
)
def test_mismatched_arguments_are_refused(settings, message):
    with one_line_error(message):
        geometry_alignment(**{"dual": POINTS, "cross": POINTS, "weights": ALL} | settings)
