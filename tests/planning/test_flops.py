import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

from endx_jax.planning.compiled import traced_flops


def shape(*dimensions):
    return jax.ShapeDtypeStruct(dimensions, jnp.float32)


def loop(x, w):
    return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=6)[0]


def twice(x, w):
    return jnp.sin(x @ w) @ w


def convolve(x, kernel):
    """Dimensions are batch, features, length; of the kernel width, in, out."""
    return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NCH", "HIO", "NCH"))


def declared(x):
    cost = pl.CostEstimate(flops=12345, transcendentals=0, bytes_accessed=0)

    def kernel(x, out):
        out[...] = x[...] @ x[...]

    return pl.pallas_call(kernel, out_shape=shape(8, 8), grid=(7,), cost_estimate=cost, interpret=True)(x)


def on_devices(a, b):
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows, whole = PartitionSpec("data"), PartitionSpec()
    at = {"mesh": mesh, "in_specs": (rows, whole), "out_specs": rows}
    return jax.shard_map(lambda a, b: a @ b, axis_names={"data"}, check_vma=False, **at)(a, b)


def branches(other):
    return lambda a, b: jax.lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: other(a, b))


def gradient(function):
    return jax.grad(lambda x, w: jnp.sum(jnp.sin(function(x, w))))


PAIR, LAYER = (shape(3, 5), shape(5, 7)), (shape(4, 8), shape(8, 8))
COUNTS = {
    "a product": (lambda a, b: a @ b, PAIR, 2 * 3 * 5 * 7),
    "a batch": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (shape(2, 3, 5), shape(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
    "a loop as often as it runs": (loop, LAYER, 6 * 2 * 4 * 8 * 8),
    "a gradient": (gradient(twice), LAYER, 4 * 2 * 4 * 8 * 8),
    "what is computed again": (gradient(jax.checkpoint(twice)), LAYER, 5 * 2 * 4 * 8 * 8),
    "a convolution": (convolve, (shape(2, 4, 16), shape(3, 4, 5)), 2 * (2 * 5 * 16) * (3 * 4)),
    "parts of devices together": (on_devices, (shape(8, 16), shape(16, 32)), 2 * 8 * 16 * 32),
    "a kernel as it declares": (declared, (shape(8, 8),), 12345),
    "of branches the one that computes": (branches(lambda a, b: jnp.zeros((3, 7))), PAIR, 2 * 3 * 5 * 7),
    "of branches the dearest": (branches(lambda a, b: a[:, :1] @ b[:1]), PAIR, 2 * 3 * 5 * 7),
}


@pytest.mark.parametrize(("function", "shapes", "count"), COUNTS.values(), ids=COUNTS)
def test_products_count_twice_their_multiplications(function, shapes, count):
    assert traced_flops(jax.make_jaxpr(function)(*shapes)) == count


@pytest.mark.parametrize("layers", [1, 3])
def test_the_walk_agrees_with_what_the_compiler_counts(layers):
    def loss(weights, x):
        for w in weights:
            x = x @ w
        return jnp.sum(x * x)

    args = ([shape(64, 64)] * layers, shape(32, 64))
    counted = jax.jit(jax.grad(loss)).lower(*args).compile().cost_analysis()["flops"]
    assert traced_flops(jax.make_jaxpr(jax.grad(loss))(*args)) == pytest.approx(counted, rel=0.03)
