"""Recurrent encoders against PyTorch's, and what padding, dtype and layout must not change."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_params
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.models import DualEncoder, MultiHopAttention, RecurrentConfig, RecurrentEncoder, TokenEmbedder, Tower
from endx_jax.models.dropout import example_keys
from endx_jax.models.layout import Padded
from endx_jax.models.recurrent import CELLS, RecurrentLayer, recurrence
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.planning.programs import collectives

LENGTHS, LENGTH, WIDTH = (5, 1, 4, 3), 5, 6
MASK = jnp.asarray(np.arange(LENGTH) < np.array(LENGTHS)[:, None])
EMBEDDED = np.random.default_rng(0).normal(size=(4, LENGTH, WIDTH)).astype(np.float32)


def encoder(cell="gru", *, layers=2, width=8, bidirectional=True, dropout=0.0, **kw):
    return RecurrentEncoder(RecurrentConfig(cell, layers, width, bidirectional, dropout), **kw)


@functools.cache
def params_of(model):
    return random_params(model, EMBEDDED, Padded(MASK))


@functools.partial(jax.jit, static_argnums=0)
def compiled(model, params, embedded, mask, keys=None):
    return model.apply({"params": params}, embedded, Padded(mask), keys)


def encode(*given):
    return jax.device_get(compiled(*given))


def to_torch(params, cell: str, bidirectional: bool):
    """The same recurrence in PyTorch: gates, their order and both biases are its own."""
    import torch

    width = params["layers_0"]["recurrent_kernel"].shape[1]
    kind = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell]
    module = kind(WIDTH, width, len(params), batch_first=True, bidirectional=bidirectional)
    for name, parameter in module.named_parameters():
        kind, part, layer, *reverse = name.split("_")
        ours = "input" if part == "ih" else "recurrent"
        theirs = {"weight": "kernel", "bias": "bias"}[kind]
        leaf = params[f"layers_{layer[1:]}"][f"{ours}_{theirs}"]
        if (kind, part) == ("weight", "ih"):
            leaf = np.moveaxis(leaf, 1, 0)  # [R, D, G, W]
        leaf = leaf[len(reverse)]
        leaf = leaf.reshape(leaf.shape[0], -1).T if kind == "weight" else leaf.reshape(-1)
        parameter.data = torch.from_numpy(np.array(leaf, order="C"))
    return module


@pytest.mark.reference
@pytest.mark.parametrize(("cell", "bidirectional"), [("rnn", True), ("gru", True), ("lstm", True), ("gru", False)])
def test_encodings_and_gradients_are_those_of_pytorch(cell, bidirectional):
    import torch

    rnn = torch.nn.utils.rnn
    model = encoder(cell, bidirectional=bidirectional)
    params = params_of(model)
    module, embedded = to_torch(params, cell, bidirectional), torch.from_numpy(np.array(EMBEDDED)).requires_grad_()
    packed = rnn.pack_padded_sequence(embedded, LENGTHS, batch_first=True, enforce_sorted=False)
    expected, _ = rnn.pad_packed_sequence(module(packed)[0], batch_first=True)
    torch.sin(3 * expected).sum().backward()

    def loss(params, embedded):
        encodings = model.apply({"params": params}, embedded, Padded(MASK))
        return jnp.sum(jnp.sin(3 * encodings)), encodings

    (of_params, of_embedded), encodings = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, EMBEDDED)
    np.testing.assert_allclose(encodings, expected.detach(), atol=1e-5)
    np.testing.assert_array_equal(encodings[~MASK], 0)
    np.testing.assert_allclose(of_embedded, embedded.grad, atol=1e-5)
    for ours, theirs in zip(to_torch(of_params, cell, bidirectional).parameters(), module.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach(), theirs.grad, atol=2e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_written_out_gradient_is_that_of_autodiff(cell):
    with jax.enable_x64(True):
        gates, draw = CELLS[cell].gates, np.random.default_rng(0)
        shapes = ((3, 2, 2, gates * 2), (2, 2, gates * 2), (2, 1, gates * 2), (2, 2, 2))
        given = tuple(draw.normal(size=shape) for shape in shapes)
        real = np.array([[True, True], [False, True], [True, False]])[:, None, :, None]
        real = np.broadcast_to(real, (3, 2, 2, 1))

        def gradient(run):
            loss = jax.grad(
                lambda *given: jnp.sum(jnp.sin(3 * run(CELLS[cell], given[0], real, *given[1:]))), (0, 1, 2, 3)
            )
            return jax.jit(loss)(*given)

        expected = jax.device_get(gradient(recurrence.fun))
        assert min(np.abs(leaf).max() for leaf in expected) > 0.1
        chex.assert_trees_all_close(gradient(recurrence), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.reference
def test_a_layer_begins_with_the_encoding_that_it_is_given():
    import torch

    model = encoder(layers=1)
    params, initial = params_of(model), np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    layer = RecurrentLayer(model.config, jnp.dtype(jnp.float32))
    everywhere = jnp.ones((4, LENGTH), bool)
    found = jax.jit(layer.apply)({"params": params["layers_0"]}, EMBEDDED, everywhere, initial)
    first = torch.from_numpy(np.stack(np.split(initial, 2, axis=1)))
    expected, _ = to_torch(params, "gru", bidirectional=True)(torch.from_numpy(np.array(EMBEDDED)), first)
    np.testing.assert_allclose(found, expected.detach(), atol=1e-5)


def test_gradients_are_reduced_over_devices_once_and_after_the_loop():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, None, "data"), ()))
    shapes = {"inputs": ((5, 1, 16, 4), split), "kernel": ((1, 4, 4), whole), "bias": ((1, 1, 4), whole)}
    inputs, kernel, bias = (jax.ShapeDtypeStruct(s, jnp.float32, sharding=at) for s, at in shapes.values())
    real = jax.ShapeDtypeStruct((5, 1, 16, 1), bool, sharding=split)

    def exchanged(run):
        def loss(kernel, bias, inputs, real):
            return jnp.sum(jnp.sin(run(CELLS["rnn"], inputs, real, kernel, bias)))

        gradient = jax.jit(jax.grad(loss, (0, 1)), out_shardings=whole)
        return collectives(gradient.lower(kernel, bias, inputs, real).compile().as_text())

    assert {(found.kind, found.loops) for found in exchanged(recurrence)} == {("all-reduce", 0)}
    assert any(found.loops and found.times == 5 for found in exchanged(recurrence.fun))  # what autodiff makes of it


def test_only_a_bidirectional_encoder_looks_ahead():
    changed = EMBEDDED + (np.arange(LENGTH) == 4)[:, None].astype(np.float32)
    for bidirectional in (True, False):
        model = encoder(layers=1, bidirectional=bidirectional)
        before, after = (encode(model, params_of(model), x, MASK)[0, 0] for x in (EMBEDDED, changed))
        assert bool(np.abs(before - after).max() > 1e-4) is bidirectional
        np.testing.assert_array_equal(before[:4], after[:4])  # the forward half


def test_a_text_without_tokens_is_zero_with_finite_gradients():
    model = encoder("lstm")
    layout = Padded(jnp.zeros_like(MASK))
    loss = jax.jit(jax.value_and_grad(lambda p: jnp.sum(model.apply({"params": p}, EMBEDDED, layout))))
    value, gradient = loss(params_of(model))
    assert value == 0
    chex.assert_tree_all_finite(gradient)


def test_bfloat16_products_carry_float32():
    embedded = np.random.default_rng(1).normal(size=(2, 300, WIDTH)).astype(np.float32)
    mask = np.ones((2, 300), bool)
    exact = encode(encoder("lstm"), params_of(encoder("lstm")), embedded, mask)
    found = encode(encoder("lstm", dtype=jnp.bfloat16), params_of(encoder("lstm")), embedded, mask)
    assert found.dtype == jnp.bfloat16
    assert 1e-4 < np.abs(np.float32(found) - exact).max() < 8 * 2**-8


def test_dropout_is_between_layers():
    keys = example_keys(jax.random.key(0), jnp.asarray(0), 4)
    params, dropping = params_of(encoder("rnn")), encoder("rnn", dropout=0.5)
    without = encode(dropping, params, EMBEDDED, MASK)
    found = encode(dropping, params, EMBEDDED, MASK, keys)
    assert np.abs(found - without).max() > 1e-2


def test_the_parameters_of_a_tower_have_the_documented_shapes_and_distribution():
    tower = Tower(TokenEmbedder(50, WIDTH), encoder(), MultiHopAttention(3, 4))
    drawn = parameter_paths(jax.eval_shape(DualEncoder(tower, tower).init, jax.random.key(0)))
    assert {path: leaf.shape for path, leaf in drawn.items()} == {
        "shared/token_embedder/embedding": (50, 6),
        "shared/encoder/layers_0/input_kernel": (6, 2, 3, 4),
        "shared/encoder/layers_1/input_kernel": (8, 2, 3, 4),
        **{f"shared/encoder/layers_{n}/recurrent_kernel": (2, 4, 3, 4) for n in range(2)},
        **{f"shared/encoder/layers_{n}/{of}_bias": (2, 3, 4) for n in range(2) for of in ("input", "recurrent")},
        "shared/pooling/hidden_kernel": (8, 4),
        "shared/pooling/hop_kernel": (4, 3),
    }
    model = encoder("lstm", layers=1, width=32)
    drawn = jax.jit(lambda key: model.init(key, EMBEDDED, Padded(MASK))["params"]["layers_0"])(jax.random.key(0))
    drawn = jax.device_get(drawn)
    for kernel in (drawn["input_kernel"], drawn["recurrent_kernel"]):
        assert 0.9 / 4 < np.abs(kernel).max() < 1 / 4  # 16 wide: 1 / sqrt(16)
    np.testing.assert_array_equal(drawn["recurrent_bias"], 0)
    np.testing.assert_array_equal(drawn["input_bias"][:, 1], 1)  # the forget gate
    np.testing.assert_array_equal(drawn["input_bias"][:, (0, 2, 3)], 0)
