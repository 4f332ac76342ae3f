"""Splits and exchanges of small functions, on paper: rows over `data` and `fsdp`, weights over `fsdp` and `tensor`."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.planning.exchanges import exchanges_of
from endx_jax.planning.layout import lay_out
from endx_jax.planning.operations import read

AXES = {"fsdp": 4, "tensor": 2}
ROWS = (("fsdp",), ())


def sent(function, *inputs, outputs=None, axes=AXES):
    """[(kind, axes, bytes)] and the splits of the outputs; an input is (shape, split, whether it is a parameter)."""
    shapes = [jax.ShapeDtypeStruct(size, jnp.float32) for size, _, _ in inputs]
    program = read(jax.make_jaxpr(function)(*shapes))
    for value, (_, split, is_parameter) in zip(program.inputs, inputs, strict=True):
        value.split, value.is_parameter = split, is_parameter
    lay_out(program, axes, outputs or [None] * len(program.outputs))
    found = exchanges_of(program, axes)
    return [(e.kind, e.axes, e.bytes) for own in found.values() for e in own], [v.split for v in program.outputs]


def test_a_parameter_is_gathered_where_the_rows_are_split_over_the_same_devices():
    exchanges, splits = sent(lambda x, w: x @ w, ((8, 16), ROWS, False), ((16, 32), (("fsdp",), ("tensor",)), True))
    assert exchanges == [("all-gather", ("fsdp",), 4 * 16 * 32 // 2)]
    assert splits == [(("fsdp",), ("tensor",))]


def test_a_width_that_is_split_is_summed_after_the_product():
    exchanges, splits = sent(
        lambda x, w: x @ w, ((8, 16), (("fsdp",), ("tensor",)), False), ((16, 32), (("tensor",), ()), True)
    )
    assert exchanges == [("all-reduce", ("tensor",), 4 * 8 * 32 // 4)]
    assert splits == [ROWS]


def test_a_gradient_is_scattered_to_where_its_parameter_is():
    def gradient(x, dy, w):
        return w - x.T @ dy

    exchanges, splits = sent(
        gradient,
        ((8, 16), ROWS, False),
        ((8, 32), ROWS, False),
        ((16, 32), (("fsdp",), ()), True),
        outputs=[(("fsdp",), ())],
    )
    assert exchanges == [("reduce-scatter", ("fsdp",), 4 * 16 * 32 // 4)]
    assert splits == [(("fsdp",), ())]


def test_a_sum_over_rows_is_reduced_and_one_over_columns_is_not():
    exchanges, _ = sent(lambda x: (jnp.sum(x, 0), jnp.sum(x, 1)), ((8, 16), ROWS, False))
    assert exchanges == [("all-reduce", ("fsdp",), 4 * 16)]


def test_splits_follow_through_turns_shapes_and_loops():
    def turned(x):
        y = x.reshape(8, 4, 4).transpose(1, 0, 2)
        return jax.lax.scan(lambda c, _: (jnp.sin(c), c), y, None, length=3)

    exchanges, splits = sent(turned, ((8, 16), ROWS, False))
    assert exchanges == []
    assert splits == [((), ("fsdp",), ()), ((), (), ("fsdp",), ())]


def test_inside_shard_map_its_own_collectives_count():
    mesh = make_mesh(MeshSettings(data=1, fsdp=4, tensor=2))
    rows, whole = PartitionSpec("fsdp"), PartitionSpec()

    def body(x, w):
        return jax.lax.psum(jnp.sum(x @ w), "fsdp")

    def function(x, w):
        return jax.shard_map(
            body, mesh=mesh, in_specs=(rows, whole), out_specs=whole, axis_names={"fsdp"}, check_vma=False
        )(x, w)

    exchanges, _ = sent(function, ((8, 16), ROWS, False), ((16, 32), (("fsdp",), ()), True))
    assert exchanges == [("all-gather", ("fsdp",), 4 * 16 * 32), ("all-reduce", ("fsdp",), 4)]


def test_a_constraint_that_undoes_a_split_gathers():
    mesh = make_mesh(MeshSettings(data=1, fsdp=4, tensor=2))
    whole = NamedSharding(mesh, PartitionSpec(None, "tensor"))

    def function(w):
        return jax.lax.with_sharding_constraint(w, whole)

    exchanges, splits = sent(function, ((16, 32), (("fsdp",), ("tensor",)), True))
    assert exchanges == [("all-gather", ("fsdp",), 4 * 16 * 32 // 2)]
    assert splits == [((), ("tensor",))]
