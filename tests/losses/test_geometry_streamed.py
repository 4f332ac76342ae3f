"""Streamed geometry alignment, on one device and on several, against the dense form; and both at the edges."""

import functools
import itertools
import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import without_metrics
from jax.sharding import AxisType, PartitionSpec

from endx_jax import losses
from endx_jax.losses import geometry_alignment
from endx_jax.losses.geometry import KERNELS, TERMS, WITH_WIDTH

embedding_regression = without_metrics(losses.embedding_regression)

B, TILE = 16, 7  # three tiles of six columns, the last not full
WHERE = np.arange(B) % 5 != 3

# Two settings that between them have every term and both values of every option.
SETTINGS = {
    "plain": {"weights": {"a|q": 1.0, "a|a": 0.5}},
    "rich": {"weights": {"q|q": 2.0, "q|a": 1.0}, "diagonal": False, "reduction": "mean", "stop_gradient": False},
}
# Most of the time here is compilation, so little of XLA's is asked for.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def drawn(dtype=np.float64, seed: int = 1) -> tuple:
    """Dual embeddings of 4 coordinates and cross embeddings of 3, off the origin; and a temperature of each space."""
    draw = np.random.default_rng(seed)
    dual, cross = (
        tuple((draw.normal(size=(B, width)) + shift).astype(dtype) for shift in (0.5, -0.2)) for width in (4, 3)
    )
    return dual, cross, (dtype(0.5), dtype(0.7))


def split_over(devices: int, loss, *specs):
    mesh = jax.make_mesh((devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices])
    return jax.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())


@functools.cache
def compiled(kernel: str, settings: str, devices: int):
    """From (dual, cross, temperature, where) to the loss with its terms, and the gradients of all but the last.

    Dense for no device, streamed for one, and split over more.
    """
    options = dict(SETTINGS[settings], kernel=kernel, tile=TILE if devices else None)
    if settings == "rich" and kernel in WITH_WIDTH:
        options["width"] = {"q|q": (0.8, None)}  # the others are estimated
    if devices > 1:
        options["axis_name"] = "data"

    def loss(dual, cross, temperature, where):
        return geometry_alignment(dual, cross, temperature=temperature, where=where, **options)

    if devices > 1:
        rows = PartitionSpec("data")
        loss = split_over(devices, loss, rows, rows, PartitionSpec(), rows)
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True), compiler_options=QUICK)


def both_forms(kernel: str, settings: str, devices: int, inputs: tuple) -> tuple:
    return tuple(compiled(kernel, settings, count)(*inputs, WHERE) for count in (0, devices))


# Always each kernel in one setting on eight devices, and one in the other on one; the rest where `slow` tests run.
QUICK_CASES = [*((kernel, "rich", 8) for kernel in KERNELS), ("inner", "plain", 1)]
ALL_CASES = itertools.product(KERNELS, SETTINGS, (1, 2, 8))
CASES = [pytest.param(*case, marks=() if case in QUICK_CASES else pytest.mark.slow) for case in ALL_CASES]


@pytest.mark.parametrize(("kernel", "settings", "devices"), CASES)
def test_streamed_is_dense(kernel, settings, devices):
    """In float64 to 1e-10: the loss, its terms, and the gradients of all embeddings and of both temperatures."""
    with jax.enable_x64(True):
        expected, streamed = both_forms(kernel, settings, devices, drawn())
    chex.assert_trees_all_close(streamed, expected, rtol=0, atol=1e-10)
    _, (to_dual, *to_cross) = expected
    assert all(np.abs(gradient).max() > 1e-5 for gradient in to_dual)
    # Of what is the cross space's there is no gradient when it is a constant.
    to_cross = (*to_cross[0], to_cross[1][1])
    assert all(gradient.any() == (settings == "rich") for gradient in to_cross)


# Each kernel takes seconds to compile: without slow tests only one of them is tested.
SOME_KERNELS = [pytest.param(name, marks=() if name == "gaussian" else pytest.mark.slow) for name in KERNELS]


@pytest.mark.parametrize("kernel", SOME_KERNELS)
def test_in_float32_it_is_as_near_to_float64_as_the_dense_form(kernel):
    """Root mean square over draws of the error over the largest gradient, of each of the four embeddings."""
    errors = []
    for seed in range(5):
        with jax.enable_x64(True):
            exact = compiled(kernel, "rich", 0)(*jax.tree.map(np.float64, drawn(np.float32, seed)), WHERE)[1][:2]
        found = [run[1][:2] for run in both_forms(kernel, "rich", 1, drawn(np.float32, seed))]
        errors.append([jax.tree.leaves(jax.tree.map(relative_error, gradients, exact)) for gradients in found])
    dense, streamed = np.sqrt(np.mean(np.square(errors), axis=0))
    assert (streamed <= 2 * dense + 1e-8).all()
    assert (dense < 1e-5).all()


def relative_error(found, exact) -> float:
    found, exact = np.asarray(found, np.float64), np.asarray(exact)
    return np.abs(found - exact).max() / np.abs(exact).max()


def test_all_terms_at_once_are_named_and_weighted():
    dual, cross, temperature = drawn(np.float32)
    weights = {"a|a": 4.0, "q|a": 3.0, "q|q": 2.0, "a|q": 1.0}
    loss = functools.partial(geometry_alignment, temperature=temperature)
    run = jax.jit(loss, static_argnames="tile", compiler_options=QUICK)
    total, terms = run(dual, cross, weights=weights, tile=TILE)
    chex.assert_trees_all_close(terms, run(dual, cross, weights=weights)[1], rtol=1e-5)
    assert float(total) == pytest.approx(sum(weights[term] * float(terms[term]) for term in TERMS), rel=1e-6)


def test_no_array_is_as_large_as_the_scores():
    def largest(devices):
        run = compiled("inner", "rich", devices).lower(*drawn(np.float32), WHERE).compile()
        return max(math.prod(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]", run.as_text()))

    assert largest(0) >= B * B > largest(1)


SITUATIONS = {
    "ordinary": lambda x: x,
    "coincident points": lambda x: np.full_like(x, 0.3),
    "two points, each eight times": lambda x: np.sign(x[:1]) * np.sign(np.arange(B)[:, None] - 7.5),
    "points that differ by rounding": lambda x: 0.3 * (1 + 1e-7 * np.sign(x)),
    "zero vectors": np.zeros_like,
    "large scores": lambda x: 100 * x,
    "opposite by 1e4": lambda x: 100 * np.sign(np.arange(B)[:, None] % 2 - 0.5) * np.eye(1, x.shape[1]),
    "far from the origin": lambda x: 1000 + x,
    "tiny": lambda x: 1e-20 * x,
}


@pytest.mark.parametrize("devices", [0, 1], ids=["dense", "streamed"])
@pytest.mark.parametrize("kernel", SOME_KERNELS)
def test_values_and_gradients_are_finite(kernel, devices):
    run = compiled(kernel, "rich", devices)
    dual, cross, temperature = drawn(np.float32)
    for name, situation in SITUATIONS.items():
        marred = jax.tree.map(lambda x, f=situation: np.float32(f(x)), (dual, cross))
        for inputs in (marred, (marred[0], cross), (dual, marred[1])):
            (total, terms), gradients = run(*inputs, temperature, WHERE)
            try:
                chex.assert_tree_all_finite((total, gradients))
            except AssertionError as error:
                raise AssertionError(name) from error
            # A divergence of 0 is the difference of scores, which carry their rounding.
            assert all(term > -1e-4 for term in terms.values()), name


@pytest.mark.parametrize("devices", [0, 1], ids=["dense", "streamed"])
@pytest.mark.parametrize("kernel", SOME_KERNELS)
def test_pairs_that_do_not_count_are_as_if_they_were_not_there(kernel, devices):
    run = compiled(kernel, "rich", devices)
    *inputs, temperature = drawn(np.float32)
    others = [jax.tree.map(lambda x, y=filler: np.where(WHERE[:, None], x, y), inputs) for filler in (0, np.nan)]
    results = [run(*embeddings, temperature, WHERE) for embeddings in (inputs, *others)]
    chex.assert_trees_all_equal(*results)
    assert not any(gradient[~WHERE].any() for gradient in jax.tree.leaves(results[0][1][:2]))
    # One pair has none to be compared with in q|q, and one in q|a.
    for where in (np.zeros(B, bool), np.arange(B) == 2):
        (total, terms), gradients = run(*inputs, temperature, where)
        nothing = jax.tree.map(jnp.zeros_like, (total, terms, gradients))
        chex.assert_trees_all_close((total, terms, gradients), nothing, atol=1e-6)


def test_regression_is_that_of_the_whole_batch():
    dual, *_ = drawn(np.float32)
    cross = dual[::-1]
    rows = PartitionSpec("data")
    loss = split_over(
        8, lambda *pairs: embedding_regression(*pairs[:2], where=pairs[2], axis_name="data"), rows, rows, rows
    )
    found = jax.jit(jax.value_and_grad(loss))(dual, cross, WHERE)
    expected = jax.value_and_grad(embedding_regression)(dual, cross, where=WHERE)
    chex.assert_trees_all_close(found, expected, rtol=1e-6)
