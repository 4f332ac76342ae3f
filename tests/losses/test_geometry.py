"""Geometry alignment against visible arithmetic and a twin of whole matrices, values and gradients."""

import functools
import itertools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import split_over, without_metrics
from jax.sharding import PartitionSpec

from endx_jax import losses
from endx_jax.losses import geometry_alignment
from endx_jax.losses.geometry import KERNELS, TERMS

embedding_regression = jax.jit(
    without_metrics(losses.embedding_regression), static_argnames=("stop_gradient", "axis_name")
)


def bernoulli(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def test_a_visible_example_of_pkt():
    dual = (jnp.array([[2.0, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 3.0], [-1.0, 0.0]]))
    cross = (jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0, 0.0], [0.6, 0.8]]))
    # (cos + 1) / 2 from q to a: dual [.5, 0] and [1, .5]; cross [1, .8] and [.5, .9].
    value = bernoulli(0.5 / 1.4, 1 / 1.5)
    first = 1 / 1.8 * math.log(1 / 1.8 / 1) + 0.8 / 1.8 * math.log(0.8 / 1.8 / (1e-7 / 0.5))
    total, _ = jax.jit(functools.partial(geometry_alignment, weights={"a|q": 1.0}, kernel="pkt"))(dual, cross)
    assert float(total) == pytest.approx((first + value) / 2, rel=1e-5)


def drawn(rows: int, seed: int) -> tuple:
    """Dual embeddings of 4 coordinates and cross embeddings of 3, off the origin, questions and answers apart."""
    draw = np.random.default_rng(seed)
    return tuple(tuple(draw.normal(size=(rows, width)) + shift for shift in (0.5, -0.2)) for width in (4, 3))


def twin(dual, cross, temperature, where, *, weights, kernel, diagonal=True, reduction="batchmean", **_):
    """The weighted sum of the terms and the terms, with whole matrices."""
    where, terms = np.asarray(where), {}
    rows = np.flatnonzero(where)
    for term in weights:
        keep = ~np.eye(len(rows), dtype=bool) if not diagonal and term in ("q|q", "a|a") else np.ones((len(rows),) * 2)
        log_p = []
        for space, pair in enumerate((dual, cross)):
            u, v = (dict(zip("qa", pair, strict=True))[side][rows] for side in term.split("|"))
            squares = jnp.sum((u[None] - v[:, None]) ** 2, axis=2)
            sigma2 = jax.lax.stop_gradient(jnp.sum(squares * keep) / jnp.sum(keep))
            cosine = (v @ u.T) / jnp.linalg.norm(v, axis=1)[:, None] / jnp.linalg.norm(u, axis=1)[None]
            scores = {
                "inner": v @ u.T,
                "sne": -squares / (2 * sigma2),
                "gaussian": jnp.exp(-squares / (2 * sigma2)),
                "pkt": jnp.log((cosine + 1) / 2),
            }[kernel] / temperature[space]
            log_p.append(scores - jnp.log(jnp.sum(jnp.exp(scores) * keep, axis=1))[:, None])
        total = jnp.sum(jnp.exp(log_p[1]) * (log_p[1] - log_p[0]) * keep)
        terms[term] = total / (np.sum(keep) if reduction == "mean" else len(rows))
    return sum(weights[term] * value for term, value in terms.items()), terms


def test_regression_is_the_mean_squared_difference():
    # Differences of q: [1, 0], [0, 2], [5, 5]; of a: [0, 0], [1, 1], [0, 7].
    dual = tuple(np.float32([[[1, 0], [0, 2], [5, 5]], [[3, 3], [1, 1], [0, 7]]]))
    cross = tuple(np.float32([[[0, 0], [0, 0], [0, 0]], [[3, 3], [0, 0], [0, 0]]]))
    assert float(embedding_regression(dual, cross)) == pytest.approx((1 + 4 + 50 + 2 + 49) / 12)
    where = np.array([True, True, False])
    assert float(embedding_regression(dual, cross, where=where)) == pytest.approx((1 + 4 + 2) / 8)
    assert float(embedding_regression(dual, cross, where=np.zeros(3, bool))) == 0
    to_dual, to_cross = jax.jit(jax.grad(embedding_regression, (0, 1)))(dual, cross)
    np.testing.assert_allclose(to_dual[0], dual[0] * 2 / 12, rtol=1e-6)
    assert not np.any(to_cross)
    to_cross = jax.jit(jax.grad(functools.partial(embedding_regression, stop_gradient=False), 1))(dual, cross)
    np.testing.assert_allclose(to_cross[0], -to_dual[0], rtol=1e-6)


N, TILE = 16, 7  # two tiles of six rows, and one of four
COUNTS = np.arange(N) % 5 != 3

# Two settings that between them have every term and both values of every option.
SETTINGS = {
    "plain": {"weights": {"a|q": 1.0, "a|a": 0.5}},
    "rich": {"weights": {"q|q": 2.0, "q|a": 1.0}, "diagonal": False, "reduction": "mean", "stop_gradient": False},
}
# Most of the time here is compilation, so little of XLA's is asked for.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def many(dtype=np.float64, seed: int = 1) -> tuple:
    """Dual embeddings of 4 coordinates and cross embeddings of 3, off the origin; and a temperature of each space."""
    dual, cross = jax.tree.map(lambda x: x.astype(dtype), drawn(N, seed))
    return dual, cross, (dtype(0.5), dtype(0.7))


@functools.cache
def compiled(kernel: str, settings: str, devices: int):
    """From (dual, cross, temperature, where) to the loss with its terms, and the gradients of all but the last.

    The twin for no device, in tiles for one, and split over more.
    """
    options = dict(SETTINGS[settings], kernel=kernel)
    if not devices:

        def loss(dual, cross, temperature):
            if options.get("stop_gradient", True):
                (cross, last) = jax.lax.stop_gradient((cross, temperature[1]))
                temperature = temperature[0], last
            return twin(dual, cross, temperature, COUNTS, **options)

        run = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True), compiler_options=QUICK)
        return lambda dual, cross, temperature, where: run(dual, cross, temperature)
    options |= {"tile": TILE, "axis_name": "data" if devices > 1 else None}

    def loss_of_all(dual, cross, temperature, where):
        return geometry_alignment(dual, cross, temperature=temperature, where=where, **options)

    if devices > 1:
        rows = PartitionSpec("data")
        loss_of_all = split_over(devices, loss_of_all, (rows, rows, PartitionSpec(), rows))
    return jax.jit(jax.value_and_grad(loss_of_all, (0, 1, 2), has_aux=True), compiler_options=QUICK)


# Always each kernel in one setting on eight devices, and one in the other on one; the rest where `slow` tests run.
QUICK_CASES = [*((kernel, "rich", 8) for kernel in KERNELS), ("inner", "plain", 1)]
ALL_CASES = itertools.product(KERNELS, SETTINGS, (1, 2, 8))
CASES = [pytest.param(*case, marks=() if case in QUICK_CASES else pytest.mark.slow) for case in ALL_CASES]


@pytest.mark.parametrize(("kernel", "settings", "devices"), CASES)
def test_values_and_gradients_are_the_twin_s(kernel, settings, devices):
    """In float64: the loss, its terms, and the gradients of all embeddings and of both temperatures."""
    with jax.enable_x64(True):
        expected, found = (compiled(kernel, settings, count)(*many(), COUNTS) for count in (0, devices))
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)
    _, (to_dual, *to_cross) = expected
    assert all(np.abs(gradient).max() > 1e-5 for gradient in to_dual)
    # Of what is the cross space's there is no gradient when it is a constant.
    to_cross = (*to_cross[0], to_cross[1][1])
    assert all(gradient.any() == (settings == "rich") for gradient in to_cross)


# Each kernel takes seconds to compile: without slow tests only one of them is tested.
SOME_KERNELS = [pytest.param(name, marks=() if name == "gaussian" else pytest.mark.slow) for name in KERNELS]


@pytest.mark.parametrize("kernel", SOME_KERNELS)
def test_in_float32_gradients_are_near_those_of_float64(kernel):
    """Root mean square over draws of the error over the largest gradient, of each of the four embeddings."""
    errors = []
    for seed in range(5):
        with jax.enable_x64(True):
            exact = compiled(kernel, "rich", 0)(*jax.tree.map(np.float64, many(np.float32, seed)), COUNTS)[1][:2]
        found = compiled(kernel, "rich", 1)(*many(np.float32, seed), COUNTS)[1][:2]
        errors.append(jax.tree.leaves(jax.tree.map(relative_error, found, exact)))
    assert (np.sqrt(np.mean(np.square(errors), axis=0)) < 1e-5).all()


def relative_error(found, exact) -> float:
    found, exact = np.asarray(found, np.float64), np.asarray(exact)
    return np.abs(found - exact).max() / np.abs(exact).max()


def test_all_terms_at_once_are_named_and_weighted_in_tiles_and_whole():
    dual, cross, temperature = many(np.float32)
    weights = {"a|a": 4.0, "q|a": 3.0, "q|q": 2.0, "a|q": 1.0}
    loss = functools.partial(geometry_alignment, temperature=temperature)
    run = jax.jit(loss, static_argnames="tile", compiler_options=QUICK)
    total, terms = run(dual, cross, weights=weights, tile=TILE)
    chex.assert_trees_all_close(terms, run(dual, cross, weights=weights)[1], rtol=1e-5)
    assert float(total) == pytest.approx(sum(weights[term] * float(terms[term]) for term in TERMS), rel=1e-6)


SITUATIONS = {
    "ordinary": lambda x: x,
    "coincident points": lambda x: np.full_like(x, 0.3),
    "two points, each eight times": lambda x: np.sign(x[:1]) * np.sign(np.arange(N)[:, None] - 7.5),
    "points that differ by rounding": lambda x: 0.3 * (1 + 1e-7 * np.sign(x)),
    "zero vectors": np.zeros_like,
    "large scores": lambda x: 100 * x,
    "opposite by 1e4": lambda x: 100 * np.sign(np.arange(N)[:, None] % 2 - 0.5) * np.eye(1, x.shape[1]),
    "far from the origin": lambda x: 1000 + x,
    "tiny": lambda x: 1e-20 * x,
}


@pytest.mark.parametrize("kernel", SOME_KERNELS)
def test_values_and_gradients_are_finite(kernel):
    run = compiled(kernel, "rich", 1)
    dual, cross, temperature = many(np.float32)
    for name, situation in SITUATIONS.items():
        marred = jax.tree.map(lambda x, f=situation: np.float32(f(x)), (dual, cross))
        for inputs in (marred, (marred[0], cross), (dual, marred[1])):
            (total, terms), gradients = run(*inputs, temperature, COUNTS)
            try:
                chex.assert_tree_all_finite((total, gradients))
            except AssertionError as error:
                raise AssertionError(name) from error
            # A divergence of 0 is the difference of scores, which carry their rounding.
            assert all(term > -1e-4 for term in terms.values()), name


@pytest.mark.parametrize("kernel", SOME_KERNELS)
def test_pairs_that_do_not_count_are_as_if_they_were_not_there(kernel):
    run = compiled(kernel, "rich", 1)
    *inputs, temperature = many(np.float32)
    others = [jax.tree.map(lambda x, y=filler: np.where(COUNTS[:, None], x, y), inputs) for filler in (0, np.nan)]
    results = [run(*embeddings, temperature, COUNTS) for embeddings in (inputs, *others)]
    chex.assert_trees_all_equal(*results)
    assert not any(gradient[~COUNTS].any() for gradient in jax.tree.leaves(results[0][1][:2]))
    # One pair has none to be compared with in q|q, and one in q|a.
    for where in (np.zeros(N, bool), np.arange(N) == 2):
        (total, terms), gradients = run(*inputs, temperature, where)
        nothing = jax.tree.map(jnp.zeros_like, (total, terms, gradients))
        chex.assert_trees_all_close((total, terms, gradients), nothing, atol=1e-6)


def test_regression_is_that_of_the_whole_batch():
    dual, *_ = many(np.float32)
    cross = dual[::-1]
    loss = split_over(8, lambda *pairs: embedding_regression(*pairs[:2], where=pairs[2], axis_name="data"))
    found = jax.jit(jax.value_and_grad(loss))(dual, cross, COUNTS)
    expected = jax.jit(jax.value_and_grad(embedding_regression))(dual, cross, where=COUNTS)
    chex.assert_trees_all_close(found, expected, rtol=1e-6)
