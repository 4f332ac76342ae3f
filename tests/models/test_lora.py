"""Adapters: what a layer computes with one, what is differentiated, and how they merge."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import TINY, padded, random_params, row_keys, texts, tower
from jaxprs import equations

from endx_jax.models.dropout import dropout, position_keys
from endx_jax.models.lora import BASE, Linear, LoraSettings, is_adapter, merged, with_adapters
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.training.step import merge_frozen, split_frozen

LORA = LoraSettings(rank=3, alpha=6.0)
TOKENS = padded(texts([5, 2, 1]), 5)


def model(lora=LORA, layers=2, **options):
    return tower(dataclasses.replace(TINY, layers=layers, lora=lora), **options)


def embed(model, params, *more):
    return jax.jit(model.apply)({"params": params}, TOKENS, *more)


def adapted(lora=LORA, layers=2):
    """Parameters with adapters whose B is not zero."""
    params = with_adapters(random_params(model(lora, layers), TOKENS), lora, jax.random.key(1))
    draw = np.random.default_rng(0)

    def filled(path, leaf):
        return draw.normal(0, 0.3, leaf.shape).astype(np.float32) if path[-1].key == "lora_b" else leaf

    return jax.tree_util.tree_map_with_path(filled, params)


def test_a_layer_adds_its_adapter_whose_input_alone_has_dropout():
    draw = np.random.default_rng(0)
    w, a, b, x = (draw.normal(size=shape).astype(np.float32) for shape in ((8, 6), (8, 3), (3, 6), (2, 4, 8)))
    layer = Linear(6, use_bias=False, lora=dataclasses.replace(LORA, dropout=0.5))
    params = {"params": {"kernel": w, "lora_a": a, "lora_b": b}}

    @jax.jit
    def compute():
        of_tokens = position_keys(row_keys(2), 4)
        found = layer.apply(params, x), layer.apply(params, x, of_tokens), layer.apply({"params": {"kernel": w}}, x)
        return found, dropout(jnp.asarray(x), of_tokens, 0.5)

    found, dropped = compute()
    expected = x @ w + 2 * (x @ a) @ b, x @ w + 2 * (np.asarray(dropped) @ a) @ b, x @ w
    for own, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, right, rtol=1e-4, atol=1e-5)
    assert (LORA.factor, dataclasses.replace(LORA, rank_stabilized=True).factor) == (2.0, 6 / 3**0.5)


@pytest.mark.parametrize("targets", ["", "layers_1/mlp"])
def test_merged_parameters_embed_as_the_adapters_do_scanned_or_not(targets):
    lora = dataclasses.replace(LORA, targets=targets)
    params = adapted(lora)
    chosen = {path.rpartition("/")[0] for path in parameter_paths(params) if is_adapter(path)}
    assert len(chosen) == {"": 12, "layers_1/mlp": 2}[targets]
    found = embed(model(lora), params)
    np.testing.assert_allclose(embed(model(lora, scan_layers=True), params), found, atol=1e-5)
    whole = merged(params, lora)
    assert not any(map(is_adapter, parameter_paths(whole)))
    np.testing.assert_allclose(embed(model(lora), whole), found, atol=1e-5)
    without = {path: leaf for path, leaf in parameter_paths(params).items() if not is_adapter(path)}
    changed = {p for p, leaf in parameter_paths(whole).items() if not np.array_equal(leaf, without[p])}
    assert changed == {f"{module}/kernel" for module in chosen}


def test_new_adapters_change_nothing():
    params = random_params(model(layers=1), TOKENS)
    more = with_adapters(params, LORA, jax.random.key(1))
    np.testing.assert_array_equal(embed(model(layers=1), more), embed(model(layers=1), params))
    drawn = [leaf for path, leaf in parameter_paths(more).items() if path.endswith("lora_a")]
    scaled = [np.asarray(leaf) * len(leaf) ** 0.5 for leaf in drawn]  # uniform in +-1 / sqrt(in)
    assert all(0.85 < np.abs(leaf).max() <= 1 for leaf in scaled)
    assert len({leaf[0, 0] for leaf in scaled}) == len(drawn)  # each has a draw of its own


def test_dropout_of_adapters_differs_from_layer_to_layer_and_not_with_a_scan():
    lora = dataclasses.replace(LORA, dropout=0.3, targets="mlp")
    params = adapted(lora)
    dropped, scanned = (embed(model(lora, scan_layers=scan), params, row_keys(3)) for scan in (False, True))
    assert np.abs(dropped - embed(model(lora), params)).max() > 0.01
    np.testing.assert_allclose(scanned, dropped, atol=1e-5)


def products(params, frozen):
    """Shapes of the products that the gradient of the parameters that are not frozen computes."""
    trained, fixed = split_frozen(params, frozen)

    def loss(trained):
        return jnp.sum(jnp.sin(model().apply({"params": merge_frozen(trained, fixed)}, TOKENS)))

    traced = jax.make_jaxpr(jax.grad(loss))(trained)
    return {eq.outvars[0].aval.shape for eq in equations(traced) if eq.primitive.name == "dot_general"}


def test_the_base_is_all_of_an_encoder_but_its_adapters_and_gets_no_gradient():
    params = adapted()
    kernels = {leaf.shape for path, leaf in parameter_paths(params).items() if path.endswith("/kernel")}
    transposed = kernels | {shape[::-1] for shape in kernels}
    assert not products(params, [BASE]) & transposed
    assert products(params, []) & transposed
    frozen = [path for path in parameter_paths(adapted()) if re.search(BASE, path)]
    assert {path.partition("/")[0] for path in frozen} == {"encoder", "token_embedder"}
    assert not any(map(is_adapter, frozen))
    assert len(frozen) + 2 * 12 == len(parameter_paths(adapted()))
