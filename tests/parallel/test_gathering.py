"""Layers that gather their matrices: what travels, what is kept, and that no loss changes."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import padded, random_params, row_keys, texts

from endx_jax.encoders.t5 import T5Config
from endx_jax.models.lora import BASE, LoraSettings, with_adapters
from endx_jax.models.tower import Projection, TokenEmbedder, Tower
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.parallel import MeshSettings, batch_sharding, make_mesh, state_shardings
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.gathering import Gathered, gathered_by_layer
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.planning.programs import collectives
from endx_jax.training.step import merge_frozen, split_frozen

CONFIG = T5Config(vocab_size=50, width=32, layers=2, heads=4, head_width=8, mlp_width=48, dropout=0.2)
ROWS, LENGTH = 16, 12
MESH = {"fsdp": 4, "tensor": 2}
LORA = LoraSettings(rank=4, alpha=8.0, dropout=0.1)
CHUNKS = 2


def tower(scan_layers: bool, remat: str = "none", dtype=jnp.float32, **changes) -> Tower:
    config = dataclasses.replace(CONFIG, **changes)
    encoder = TransformerEncoder(config, jnp.dtype(dtype), remat=remat, scan_layers=scan_layers)
    return Tower(TokenEmbedder(CONFIG.vocab_size, CONFIG.width, jnp.dtype(dtype)), encoder, projection=Projection(16))


@functools.cache
def params() -> dict:
    return random_params(tower(False), tokens())


def tokens():
    return padded(texts([1 + i % LENGTH for i in range(ROWS)]), LENGTH)


def loss_of(model: Tower, execution: Execution):
    def loss(params, rows):
        embeddings = execution.map_rows(lambda p, r: model.apply({"params": p}, *r), params, rows)
        return jnp.mean(jnp.cos(3 * embeddings))

    return jax.jit(jax.value_and_grad(loss))


def compiled(scan_layers: bool, remat: str, dropping: bool, dtype=jnp.float32):
    """The program on the mesh, and what it is given."""
    mesh = make_mesh(MeshSettings(**MESH))
    given = jax.device_put(params(), state_shardings(params(), mesh))
    rows = jax.device_put((tokens(), row_keys(ROWS) if dropping else None), batch_sharding(mesh))
    step = loss_of(tower(scan_layers, remat, dtype), Execution(mesh, dtype=dtype))
    return step.lower(given, rows).compile(), given, rows


@pytest.mark.parametrize(
    ("scan_layers", "remat", "dropping"),
    [
        (True, "none", False),
        pytest.param(True, "none", True, marks=pytest.mark.slow),
        pytest.param(False, "none", True, marks=pytest.mark.slow),
        pytest.param(True, "full", True, marks=pytest.mark.slow),
    ],
)
def test_gathered_layers_give_the_loss_and_the_gradient_of_one_device(scan_layers, remat, dropping):
    one_device = loss_of(tower(scan_layers), Execution())
    expected, expected_gradient = one_device(params(), (tokens(), row_keys(ROWS) if dropping else None))
    program, given, rows = compiled(scan_layers, remat, dropping)
    loss, gradient = program(given, rows)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected_gradient))
    gradients = jax.device_get((gradient, expected_gradient))
    chex.assert_trees_all_close(*gradients, rtol=0, atol=1e-5 * largest)
    check_what_travels(program)
    held, split = (parameter_paths(tree["encoder"]["layers_1"]) for tree in (gradient, given))
    assert all(leaf.sharding.is_equivalent_to(split[path].sharding, leaf.ndim) for path, leaf in held.items())


def check_what_travels(program) -> None:
    """No activation of the whole batch does, and each layer's matrices do twice: forward, and for the gradient."""
    found = collectives(program.as_text())
    # All matrices of a layer, a half of each, as `tensor` splits them. A CPU moves bfloat16 as float32.
    matrices = (4 * CONFIG.width * 32 + 3 * CONFIG.width * CONFIG.mlp_width) // MESH["tensor"] * 4
    gathered = sum(one.bytes * one.times for one in found if one.kind == "all-gather" and "/layers" in one.source)
    assert gathered == 2 * CONFIG.layers * matrices
    activations = ROWS * LENGTH * CONFIG.width * 4
    assert not [one for one in found if one.kind == "all-gather" and one.bytes >= activations]


def test_matrices_are_cast_before_they_are_gathered():
    boxed = gathered_by_layer(params(), make_mesh(MeshSettings(**MESH)), jnp.bfloat16)
    one = boxed["encoder"]["layers_0"]["mlp_up"]["kernel"]
    program = str(jax.make_jaxpr(lambda value: one.replace_boxed(value).unbox())(one.value))
    # Without the first constraint, a compiler may gather the matrix before the cast.
    steps = ["convert_element_type", "('fsdp', 'tensor')", "(None, 'tensor')"]
    assert re.findall(r"convert_element_type|(?<=spec=P)\(.*?\)", program) == steps
    assert jax.eval_shape(one.unbox).dtype == jnp.bfloat16


def test_only_matrices_that_fsdp_splits_are_boxed():
    boxed = gathered_by_layer(params(), make_mesh(MeshSettings(**MESH)), jnp.float32)
    is_box = lambda leaf: isinstance(leaf, Gathered)  # noqa: E731
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(boxed, is_leaf=is_box)
        if is_box(leaf)
    ]
    names = [f"attention/{part}" for part in ("key", "output", "query", "value")] + ["mlp_down", "mlp_gate", "mlp_up"]
    assert sorted(paths) == [f"encoder/layers_{n}/{name}/kernel" for n in range(2) for name in names]
    assert gathered_by_layer(params(), make_mesh(MeshSettings(tensor=2)), jnp.float32) is params()


@functools.cache
def adapted(layers: int) -> dict:
    drawn = with_adapters(random_params(tower(False, layers=layers), tokens()), LORA, jax.random.key(0))
    return jax.tree.map(lambda leaf: np.asarray(leaf) + (leaf.shape[0] == LORA.rank) * np.float32(0.1), drawn)


def step_in_chunks(scan_layers: bool, layers: int, dropping: bool, execution: Execution):
    """The compiled gradient of the adapters, and what it is given."""
    model, mesh = tower(scan_layers, layers=layers, lora=LORA), execution.mesh
    given, rows = adapted(layers), (tokens(), row_keys(ROWS) if dropping else None)
    given, rows = jax.device_put((given, rows), (state_shardings(given, mesh), batch_sharding(mesh)))
    trained, fixed = split_frozen(given, [BASE])

    def loss(trained, fixed, rows):
        merged = merge_frozen(trained, fixed)
        embeddings = execution.map_rows(lambda p, r: model.apply({"params": p}, *r), merged, rows)
        return jnp.mean(jnp.cos(3 * embeddings))

    step = jax.jit(jax.value_and_grad(loss))
    return step.lower(trained, fixed, rows).compile(), (trained, fixed, rows)


@pytest.mark.parametrize(
    ("scan_layers", "layers", "dropping"), [(False, 1, False), pytest.param(True, 2, True, marks=pytest.mark.slow)]
)
def test_chunks_of_adapters_gather_the_base_in_their_loop_and_reduce_after_it(scan_layers, layers, dropping):
    mesh = make_mesh(MeshSettings(data=2, fsdp=4))
    execution = Execution(mesh, tower_chunk=ROWS // 8 // CHUNKS, by_layer=True)
    program, given = step_in_chunks(scan_layers, layers, dropping, execution)
    before, _ = step_in_chunks(scan_layers, layers, dropping, dataclasses.replace(execution, by_layer=False))
    assert not [one for one in collectives(before.as_text()) if one.loops]
    found, expected = jax.device_get((program(*given), before(*given)))
    chex.assert_trees_all_close(
        found, expected, rtol=0, atol=1e-5 * max(np.abs(x).max() for x in jax.tree.leaves(expected))
    )
    inside = [one for one in collectives(program.as_text()) if one.loops]
    assert {one.kind for one in inside} == {"all-gather"}
    matrices = (4 * CONFIG.width * 32 + 3 * CONFIG.width * CONFIG.mlp_width) * 4
    # Forward, forward again for the chunk's gradient, and backward; a CPU's compiler merges some of unrolled layers.
    gathered = sum(one.bytes * one.times for one in inside) / (CHUNKS * layers * matrices)
    assert gathered == 3 if scan_layers else 1 < gathered <= 3
