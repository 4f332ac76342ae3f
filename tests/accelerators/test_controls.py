"""Faults that the tests of this folder look for, put into small programs: each is found."""

import jax
import jax.numpy as jnp
import pytest
from accelerator_programs import collectives_in_loops, devices_or_skip, float32_products
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.training import compilation
from endx_jax.training.compilation import compile_ahead, used_and_limit

WIDTH = 256


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshSettings(), devices_or_skip("v5e:2x2"))


def compiled(mesh, function, *, donate=False):
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    state = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=whole)
    batch = jax.ShapeDtypeStruct((64, WIDTH), jnp.float32, sharding=rows)
    step = jax.jit(function, out_shardings=whole, donate_argnums=(0,) if donate else ())
    return step.lower(state, batch).compile()


def gradient(dtype):
    def loss(w, x):
        with jax.named_scope("towers/encoder/layer"):
            return jnp.sum(jnp.tanh(x.astype(dtype) @ w.astype(dtype)).astype(jnp.float32))

    return jax.grad(loss)


def test_a_collective_in_a_loop_a_float32_product_and_a_missing_donation_are_found(mesh):
    def every_turn(w, x):
        rows, whole = PartitionSpec("data"), PartitionSpec()

        def body(w, x):
            return jax.lax.fori_loop(0, 3, lambda _, w: w + jax.lax.psum(x.T @ jnp.tanh(x @ w), "data"), w)

        return jax.shard_map(body, mesh=mesh, in_specs=(whole, rows), out_specs=whole, check_vma=False)(w, x)

    def update(w, x):
        return w - gradient(jnp.bfloat16)(w, x)

    good = compiled(mesh, update, donate=True)
    assert (collectives_in_loops(good.as_text()), float32_products(good.as_text())) == ([], [])
    assert collectives_in_loops(compiled(mesh, every_turn).as_text()) != []
    assert float32_products(compiled(mesh, gradient(jnp.float32)).as_text()) != []
    donated = [one.memory_analysis().alias_size_in_bytes for one in (good, compiled(mesh, update))]
    assert donated == [4 * WIDTH * WIDTH, 0]


def test_a_program_that_does_not_fit_is_counted(mesh, monkeypatch):
    monkeypatch.setattr(compilation, "abstract_batch", lambda batch, _: batch)
    device = SingleDeviceSharding(mesh.devices.flat[0])
    large = jax.ShapeDtypeStruct((3 * 2**30,), jnp.float32, sharding=device)
    step = compile_ahead(jax.jit(lambda _, x: 2 * x), None, [large], mesh)
    assert (step.programs, step.bytes()) == ({}, 24 * 2**30)
    with pytest.raises(jax.errors.JaxRuntimeError) as refused:
        jax.jit(lambda x: 2 * x).lower(large).compile()
    assert used_and_limit(refused.value) == (24 * 2**30, int(15.75 * 2**30))
