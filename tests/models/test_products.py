"""Products in bfloat16: their values and gradients, where they are used, and who chooses them."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers import ONE_LAYER, padded, random_params, texts, tower
from jaxprs import equations

from endx_jax.methods.endx.teacher import CrossEncoder
from endx_jax.models import products
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.layout import Padded
from endx_jax.models.lora import LoraSettings, with_adapters
from endx_jax.models.pooling import mean
from endx_jax.models.products import bfloat16_product, multiplies_bfloat16, product_dtype_on
from endx_jax.models.recurrent import RecurrentConfig, RecurrentEncoder
from endx_jax.models.transformer import TransformerEncoder

MASK = jnp.asarray(np.arange(5) < np.array((5, 1, 4))[:, None])
EMBEDDED = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 16)).astype(np.float32))
LORA = LoraSettings(rank=3)


def rounded(x) -> np.ndarray:
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


def test_products_and_gradients_are_those_of_rounded_factors_summed_in_float32():
    draw = np.random.default_rng(0)
    x, kernel, weights = (draw.normal(size=s).astype(np.float32) for s in ((2, 3, 400), (400, 7), (2, 3, 7)))

    @jax.jit
    def differentiate(x, kernel):
        found, pull = jax.vjp(bfloat16_product, x, kernel)
        return found, *pull(weights)

    found, to_x, to_kernel = differentiate(x, kernel)
    assert {array.dtype for array in (found, to_x, to_kernel)} == {np.dtype("float32")}
    np.testing.assert_allclose(found, rounded(x) @ rounded(kernel), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(to_x, rounded(weights) @ rounded(kernel).T, rtol=1e-5, atol=1e-4)
    expected = np.einsum("bld,ble->de", rounded(x), rounded(weights))
    np.testing.assert_allclose(to_kernel, expected, rtol=1e-5, atol=1e-4)


def transformer(product_dtype="float32", dtype=jnp.float32):
    """With all linear layers that there are: a projection of the token table, and adapters."""
    config = dataclasses.replace(ONE_LAYER, embedding_width=16, lora=LORA, product_dtype=product_dtype)
    return TransformerEncoder(config, jnp.dtype(dtype))


def gru(product_dtype="float32", dtype=jnp.float32):
    return RecurrentEncoder(RecurrentConfig("gru", 1, 16, product_dtype=product_dtype), jnp.dtype(dtype))


def step(encoder):
    """Returns the function of parameters to (encodings of the tokens, gradient of their weighted sum)."""
    weights = jnp.asarray(np.random.default_rng(1).normal(size=EMBEDDED.shape)) * MASK[..., None]

    def weighted(params):
        encodings = encoder.apply({"params": params}, EMBEDDED, Padded(MASK)) * MASK[..., None]
        return jnp.sum(encodings.astype(weights.dtype) * weights), encodings

    def run(params):
        (_, encodings), gradient = jax.value_and_grad(weighted, has_aux=True)(params)
        return encodings, gradient

    return jax.jit(run)


def test_the_errors_of_a_step_are_at_most_those_of_bfloat16():
    params = random_params(gru(), EMBEDDED, Padded(MASK))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        exact = jax.tree.map(np.asarray, step(gru(dtype=jnp.float64))(wide))

    def errors(encoder) -> list[float]:
        """Root mean squares over encodings and over each parameter's gradient, summed."""
        apart = jax.tree.map(lambda a, b: np.sqrt(np.mean((np.float64(a) - b) ** 2)), step(encoder)(params), exact)
        return [sum(jax.tree.leaves(part)) for part in apart]

    for plain, rounded, half in zip(*map(errors, (gru(), gru("bfloat16"), gru(dtype=jnp.bfloat16))), strict=True):
        assert 100 * plain < rounded <= half


def factors(encoder, params):
    """Returns the data types of both factors of each product of two matrices in a step."""
    jaxpr = jax.make_jaxpr(step(encoder))(params)
    found = [
        e for e in equations(jaxpr) if e.primitive.name == "dot_general" and not e.params["dimension_numbers"][1][0]
    ]
    return {str(variable.aval.dtype) for equation in found for variable in equation.invars}


def test_all_linear_layers_multiply_alike_scanned_or_not():
    params = {"encoder": random_params(transformer(), EMBEDDED, Padded(MASK))}
    params = with_adapters(params, LORA, jax.random.key(0))["encoder"]
    for scan in (False, True):
        assert factors(transformer("bfloat16").clone(scan_layers=scan), params) == {"bfloat16"}
        assert factors(transformer().clone(scan_layers=scan), params) == {"float32"}


def test_the_teacher_multiplies_as_its_student():
    made = [CrossEncoder(mean, heads=2, product_dtype=name) for name in ("float32", "bfloat16")]
    params = random_params(made[0], EMBEDDED, MASK, EMBEDDED, MASK)
    exact, found = (jax.jit(model.apply)({"params": params}, EMBEDDED, MASK, EMBEDDED, MASK)[0] for model in made)
    assert 1e-4 < np.abs(exact - found).max() < 0.05 * np.abs(exact).max()


def test_a_tower_says_by_what_its_products_are():
    config = dataclasses.replace(ONE_LAYER, product_dtype="bfloat16")
    names = [each.product_dtype for each in (tower(), tower(config), tower(config, dtype=jnp.bfloat16))]
    assert names == ["float32", "bfloat16", None]
    tokens = padded(texts([5, 2, 1]), 5)
    params = {"params": random_params(tower(config), tokens)}
    exact, found = (jax.jit(tower(each, normalize=True).apply)(params, tokens) for each in (ONE_LAYER, config))
    assert 1e-5 < np.abs(exact - found).max() < 2**-6


def test_kernels_that_encoding_rounds_once_give_the_same_embeddings():
    tokens = padded(texts([5, 2, 1]), 5)
    params = {"shared": random_params(tower(ONE_LAYER), tokens)}
    for name, kernels in (("float32", set()), ("bfloat16", {"query", "key", "value", "output", "mlp_up", "mlp_down"})):
        one = tower(dataclasses.replace(ONE_LAYER, product_dtype=name))
        model = DualEncoder(one, one)
        prepared = model.encoding_params(params, "question")
        leaves = jax.tree_util.tree_leaves_with_path(prepared)
        assert {path[-2].key for path, leaf in leaves if leaf.dtype == jnp.bfloat16} == kernels
        encode = jax.jit(lambda params, model=model: model.encode(params, "answer", tokens))
        np.testing.assert_array_equal(encode(prepared), encode(params))


@pytest.mark.parametrize(
    ("flags", "has"), [("avx512_bf16", True), ("amx_bf16 amx_tile", True), ("avx512f", False), (None, False)]
)
def test_auto_follows_the_flags_of_the_cpu(set_cpu, flags, has):
    set_cpu(flags)
    assert multiplies_bfloat16() is has
    assert product_dtype_on("cpu", "auto") == ("bfloat16" if has else "float32")
    assert [product_dtype_on(name, "bfloat16") for name in ("tpu", "gpu")] == ["float32"] * 2


def test_a_cpu_without_the_instructions_is_named_once(set_cpu, caplog):
    set_cpu("avx512f")
    products._warn_of_slow_products.cache_clear()  # another test may have been warned
    assert [product_dtype_on("cpu", "bfloat16") for _ in range(2)] == ["bfloat16"] * 2
    (record,) = caplog.records
    assert "bfloat16 products will be slow: this CPU has no instructions for them" in record.getMessage()


def test_what_is_set_goes_before_the_settings_of_the_models_that_are_built():
    with products.product_dtype("bfloat16"):
        with products.product_dtype(None) as held:
            assert (held, product_dtype_on("cpu", "float32")) == ("bfloat16", "bfloat16")
            products.set_product_dtype("float32")
        assert product_dtype_on("cpu", "float32") == "bfloat16"
    assert product_dtype_on("cpu", "float32") == "float32"
