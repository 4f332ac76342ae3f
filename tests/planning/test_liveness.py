"""Peaks of small programs, on paper: float32 arrays of [64, 64] have 16 kB each."""

import jax
import jax.numpy as jnp

from endx_jax.planning.liveness import Liveness
from endx_jax.planning.operations import read

SIZE = 4 * 64 * 64
X = jax.ShapeDtypeStruct((64, 64), jnp.float32)


def peak(function, *inputs, in_place=0):
    return Liveness(read(jax.make_jaxpr(function)(*inputs)), {}, {}, in_place).peak().bytes


def test_what_is_computed_entry_by_entry_is_never_written():
    assert peak(lambda x: jnp.sum(2 * x + 1), X) == 4
    assert peak(lambda x: 2 * x + 1, X) == SIZE


def test_a_product_reads_its_operands_from_memory():
    # 2 x stands while the product is made, and then the product alone.
    assert peak(lambda x: (2 * x) @ x, X) == 2 * SIZE
    # Of a chain two products stand at a time, however long it is.
    assert peak(lambda x: (((x @ x) @ x) @ x) @ x, X) == 2 * SIZE


def test_activations_wait_for_the_backward_pass():
    def loss(w, x):
        for _ in range(4):
            x = jnp.sin(x @ w)
        return jnp.sum(x)

    # Four products for the cosines, four sines that are read by products, three of them again in the backward pass.
    found = peak(jax.grad(loss), X, X)
    recomputed = peak(jax.grad(lambda w, x: jax.checkpoint(loss)(w, x)), X, X)
    assert 7 * SIZE <= found <= 10 * SIZE
    assert found <= recomputed <= found + 2 * SIZE


def test_dear_values_are_kept_and_cheap_ones_computed_again():
    def function(cheap):
        def twice(x, y):
            z = cheap(x)
            return jnp.sum(z * y), jnp.sum(z * jnp.sum(z))

        return peak(twice, X, X)

    assert function(lambda x: x + 1) < SIZE <= function(jnp.exp)


def test_the_new_state_is_written_where_the_old_one_was():
    assert peak(lambda x: x + 1, X, in_place=1) == 0


def test_a_loop_holds_one_turn_and_what_comes_out_of_all():
    def loop(x):
        return jax.lax.scan(lambda c, _: ((2 * c) @ c, None), x, None, length=5)[0]

    def stacked(x):
        return jax.lax.scan(lambda c, _: (c @ c, c @ c), x, None, length=5)[1]

    assert peak(loop, X) == 3 * SIZE  # what is carried out, and within 2 c and the product
    assert 6 * SIZE <= peak(stacked, X) <= 9 * SIZE


def test_bytes_moved_are_those_read_and_written():
    program = read(jax.make_jaxpr(lambda x: x @ x)(X))
    assert Liveness(program, {}, {}).moved() == 2 * SIZE
    program = read(jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (c @ c, None), x, None, length=5)[0])(X))
    assert Liveness(program, {}, {}).moved() == 5 * 2 * SIZE
