import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

from endx_jax.planning.compiled import traced_flops


def flops_of(function, *shapes):
    return traced_flops(jax.make_jaxpr(function)(*shapes))


def shape(*dimensions):
    return jax.ShapeDtypeStruct(dimensions, jnp.float32)


def test_products_count_twice_their_multiplications_and_loops_as_often_as_they_run():
    assert flops_of(lambda a, b: a @ b, shape(3, 5), shape(5, 7)) == 2 * 3 * 5 * 7
    batched = flops_of(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), shape(2, 3, 5), shape(2, 5, 7))
    assert batched == 2 * 2 * 3 * 5 * 7

    def loop(x, w):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=6)[0]

    assert flops_of(loop, shape(4, 8), shape(8, 8)) == 6 * 2 * 4 * 8 * 8


def test_what_is_computed_again_is_counted_again():
    def loss(x, w):
        return jnp.sum(jnp.sin(jax.checkpoint(lambda x: jnp.sin(x @ w) @ w)(x)))

    once, product = jax.grad(lambda x, w: jnp.sum(jnp.sin(jnp.sin(x @ w) @ w))), 2 * 4 * 8 * 8
    assert flops_of(once, shape(4, 8), shape(8, 8)) == 4 * product
    assert flops_of(jax.grad(loss), shape(4, 8), shape(8, 8)) == 5 * product


@pytest.mark.parametrize("layers", [1, 3])
def test_the_walk_agrees_with_what_the_compiler_counts(layers):
    def loss(weights, x):
        for w in weights:
            x = x @ w
        return jnp.sum(x * x)

    args = ([shape(64, 64)] * layers, shape(32, 64))
    counted = jax.jit(jax.grad(loss)).lower(*args).compile().cost_analysis()["flops"]
    assert flops_of(jax.grad(loss), *args) == pytest.approx(counted, rel=0.03)


def test_a_convolution():
    x, kernel = shape(2, 4, 16), shape(3, 4, 5)  # batch, features, length; width, in, out

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=("NCH", "HIO", "NCH"))

    assert flops_of(convolve, x, kernel) == 2 * (2 * 5 * 16) * (3 * 4)


def test_parts_of_devices_count_together():
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows, whole = PartitionSpec("data"), PartitionSpec()
    at = {"mesh": mesh, "in_specs": (rows, whole), "out_specs": rows}
    product = jax.shard_map(lambda a, b: a @ b, axis_names={"data"}, check_vma=False, **at)
    assert flops_of(product, shape(8, 16), shape(16, 32)) == 2 * 8 * 16 * 32


def test_a_kernel_counts_as_it_declares():
    def double(x):
        cost = pl.CostEstimate(flops=12345, transcendentals=0, bytes_accessed=0)

        def kernel(x, out):
            out[...] = x[...] @ x[...]

        return pl.pallas_call(kernel, out_shape=shape(8, 8), grid=(7,), cost_estimate=cost, interpret=True)(x)

    assert flops_of(double, shape(8, 8)) == 12345


def test_of_branches_the_dearest_counts():
    def function(a, b):
        return jax.lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: jnp.zeros((3, 7)))

    assert flops_of(function, shape(3, 5), shape(5, 7)) == 2 * 3 * 5 * 7

    def function_of_two(a, b):
        return jax.lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: a[:, :1] @ b[:1])

    assert flops_of(function_of_two, shape(3, 5), shape(5, 7)) == 2 * 3 * 5 * 7
