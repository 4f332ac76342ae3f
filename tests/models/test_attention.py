"""Attention against one written out in NumPy, and where the hardware's own is taken."""

import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import raising
from pretended import pretended

from endx_jax.models import attention
from endx_jax.models.attention import Pattern, attend, plain_because, seen_reasons
from endx_jax.models.dropout import attention_dropout, example_keys

B, L, M, H, D = 3, 4, 6, 2, 5
MASK = np.arange(M) < np.array([[6], [3], [1]])
RATE = 0.4


def drawn(*shapes):
    draw = np.random.default_rng(0)
    return [draw.normal(size=shape).astype(np.float32) for shape in shapes]


SHAPES = (B, L, H, D), (B, M, H, D), (B, M, H, D)


def naive(query, key, value, mask, scale, bias=0, keep=1, causal=False, window=None):
    """Attention by loops; 0 for a query that sees nothing."""
    out, groups = np.zeros(query.shape), key.shape[2]
    bias, keep = (np.broadcast_to(x, (len(query), query.shape[2], query.shape[1], key.shape[1])) for x in (bias, keep))
    for b, i, h in np.ndindex(query.shape[:3]):
        group = h * groups // query.shape[2]
        near = [j for j in range(key.shape[1]) if (j <= i or not causal) and (not window or abs(i - j) <= window)]
        seen = [j for j in near if mask[b, j]]
        weights = np.exp([query[b, i, h] @ key[b, j, group] * scale + bias[b, h, i, j] for j in seen])
        for j, weight in zip(seen, weights / weights.sum(), strict=True):
            out[b, i, h] += weight * keep[b, h, i, j] * value[b, j, group]
    return out


@pytest.mark.parametrize(("scale", "biased", "dropping"), [(1.0, True, True), (D**-0.5, False, False)])
def test_attention_is_the_sum_written_out(scale, biased, dropping):
    *arrays, bias = drawn(*SHAPES, (1, H, L, M))

    @jax.jit
    def compute(*arrays):
        keys = example_keys(jax.random.key(3), 0, B) if dropping else None
        keep = attention_dropout(jnp.ones((B, H, L, M)), keys, RATE)
        return attend(*arrays, MASK, Pattern(scale, dropout_rate=RATE), bias if biased else None, keys), keep

    found, keep = compute(*arrays)
    assert (0 < (keep == 0).mean() < 1) == dropping
    np.testing.assert_allclose(found, naive(*arrays, MASK, scale, bias * biased, keep), atol=2e-6)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 2), (False, 4)])
def test_grouped_attention_is_that_of_repeated_heads_over_what_a_token_may_see(groups, causal, window):
    arrays = drawn(*((B, M, heads, D) for heads in (4, groups, groups)))
    seen = {"scale": 0.5, "causal": causal, "window": window}
    found = np.asarray(jax.jit(lambda *x: attend(*x, MASK, Pattern(**seen)))(*arrays))
    expected = naive(*arrays, MASK, **seen)
    np.testing.assert_allclose(found[MASK], expected[MASK], atol=1e-5)  # of padding there is no promise


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_a_row_without_tokens_gives_finite_values_and_gradients(rate):
    mask = MASK & (np.arange(B) != 1)[:, None]

    def loss(*arrays):
        keys = example_keys(jax.random.key(3), 0, B)
        return jnp.sum(attend(*arrays, mask, Pattern(1.0, dropout_rate=rate), dropout_keys=keys) ** 2)

    chex.assert_tree_all_finite(jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*drawn(*SHAPES)))


@pytest.mark.parametrize("rate", [0.0, RATE])
def test_bfloat16_attention_sums_its_weights_in_float32(rate):
    # 4,096 equal scores: in bfloat16 a running sum of exponentials would stick at 256.
    many = 4096
    query, key = np.zeros((1, 1, 1, 2), jnp.bfloat16), np.zeros((1, many, 1, 2), jnp.bfloat16)

    @jax.jit
    def compute(*arrays):
        keys = example_keys(jax.random.key(0), 0, 1)
        return attend(*arrays, np.ones((1, many), bool), Pattern(1.0, dropout_rate=rate), None, keys)

    out = compute(query, key, np.ones_like(key))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(out), 1.0, atol=0.05)


def test_training_in_bfloat16_keeps_no_weights_in_float32():
    length = 8
    arrays = [array.astype(jnp.bfloat16) for array in drawn(*[(2, length, H, D)] * 3)]

    def attended(*arrays):
        return attend(*arrays, np.ones((2, length), bool), Pattern(1.0), np.zeros((1, H, length, length), np.float32))

    pull = jax.eval_shape(lambda *arrays: jax.vjp(attended, *arrays)[1], *arrays)
    kept = [(x.dtype, x.shape) for x in jax.tree.leaves(pull) if x.shape[-2:] == (length, length)]
    assert kept == [(jnp.bfloat16, (2, H, length, length))]
    assert not [x.shape for x in jax.tree.leaves(pull) if x.dtype == jnp.float32 and x.shape[-1:] == (D,)]
    differentiate = jax.jit(jax.grad(lambda *arrays: jnp.sum(attended(*arrays)), (0, 1, 2)))
    wide = differentiate(*(array.astype(np.float32) for array in arrays))
    for found, expected in zip(differentiate(*arrays), wide, strict=True):
        np.testing.assert_allclose(np.float32(found), expected, atol=0.03)


@pytest.fixture
def cudnn(monkeypatch):
    """Sets what is missing for cuDNN's attention: what is on this machine is asked for once, and it may have no GPU."""

    def lack(reason=""):
        monkeypatch.setattr(attention, "_missing_for_cudnn", lambda: reason)

    lack()
    return lack


NOT_EVEN = "do not divide evenly among the devices"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"dtype": jnp.float16, "head": 128}, ""),
        ({"dtype": jnp.float32}, "fused attention needs model.dtype=bfloat16 (now float32)"),
        ({"head": 136}, "heads are 136 wide, and cuDNN takes multiples of 8 up to 128"),
        ({"head": 60, "rate": 0.1}, "heads are 60 wide, and cuDNN takes multiples of 8 up to 128"),
        ({"queries": 31}, "a batch has rows of an odd length"),
        ({"memory": 31}, "a batch has rows of an odd length"),
        ({"tensor": 2}, ""),
        ({"tensor": 4}, f"the 2 rows or 2 heads {NOT_EVEN}"),  # more devices than heads of keys
        ({"fsdp": 4}, f"the 2 rows or 2 heads {NOT_EVEN}"),
        ({"rate": 0.1}, "fused attention needs model.attention_dropout=0 (now 0.1)"),
        ({"missing": "no cuDNN", "rate": 0.1}, "no cuDNN"),
        ({"on": "tpu", "dtype": jnp.float32, "head": 60, "queries": 31, "tensor": 4}, ""),
        ({"on": "tpu", "tensor": 8}, f"the 2 rows or 4 heads {NOT_EVEN}"),
        ({"on": "tpu", "fsdp": 4}, f"the 2 rows or 4 heads {NOT_EVEN}"),
        ({"on": "tpu", "fsdp": 4, "packed": True}, ""),
        ({"on": "tpu", "biased": True}, "the scores have a bias"),
        ({"on": "tpu", "rate": 0.1}, "fused attention needs model.attention_dropout=0 (now 0.1)"),
    ],
)
def test_the_reason_why_attention_is_plain(cudnn, changes, expected):
    given = {"dtype": jnp.bfloat16, "head": 64, "queries": 32, "memory": 48, "rate": 0.0, "on": "gpu"} | changes
    sizes = ((given["queries"], 4), (given["memory"], 2))
    query, key = (jax.ShapeDtypeStruct((2, *size, given["head"]), given["dtype"]) for size in sizes)
    axes = {axis: given[axis] for axis in ("tensor", "fsdp") if axis in given}
    cudnn(given.get("missing", ""))
    options = {name: given[name] for name in ("biased", "packed") if name in given}
    with jax.sharding.use_abstract_mesh(pretended(given["on"], **axes)):
        assert plain_because(query, key, Pattern(1.0, dropout_rate=given["rate"]), **options) == expected


@pytest.fixture
def fused(monkeypatch):
    """Options of the calls of the fused attention, which returns the queries: there is no GPU."""
    calls = []
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda query, *_, **given: calls.append(given) or query)
    return calls


def test_a_text_without_tokens_has_a_finite_result(fused):
    mask = jnp.array([[False, False], [True, False]])
    # `attend` chooses it on a mesh of GPUs only, on which nothing has values here.
    attention._attend_by_cudnn(*[jnp.ones((2, 2, 1, 8))] * 3, mask, Pattern(1.0))
    assert fused[0]["key_value_seq_lengths"].tolist() == [1, 1]


def test_old_cards_and_those_without_cudnn_have_plain_attention(fused, monkeypatch):
    card = types.SimpleNamespace(platform="gpu", device_kind="Tesla T4", compute_capability="7.5")
    monkeypatch.setattr(jax, "local_devices", lambda: [card])
    ask = attention._missing_for_cudnn.__wrapped__  # otherwise asked once in a process
    assert ask() == "Tesla T4 is too old for cuDNN's attention"
    monkeypatch.setattr(jax.nn, "dot_product_attention", raising(RuntimeError("cuDNN is not detected.")))
    assert ask() == "JAX can't use cuDNN here (cuDNN is not detected)"


@pytest.mark.parametrize(
    ("on", "options", "expected"),
    [
        ("gpu", {}, ""),
        ("gpu", {"window": M - 1}, ""),  # covers the text
        ("gpu", {"window": 2}, "a window of 2 tokens before and after is narrower than some texts"),
        ("gpu", {"bias": np.zeros((1, H, M, M), np.float32)}, "the scores have a bias"),
        ("gpu", {"dropout_keys": None, "dropout_rate": RATE}, ""),
        ("gpu", {"dropout_rate": 0.0}, ""),  # dropout of hidden states alone
        ("gpu", {"dropout_rate": RATE}, "fused attention needs model.attention_dropout=0 (now 0.4)"),
        ("cpu", {}, None),
    ],
)
def test_attention_is_cudnns_on_a_mesh_of_gpus_where_it_computes_all(on, options, expected, cudnn, fused):
    key = jax.ShapeDtypeStruct((B, M, H, 8), jnp.bfloat16)
    given = {"dropout_keys": example_keys(jax.random.key(0), 0, B)} | options
    pattern = Pattern(1.0, **{name: given.pop(name) for name in ("window", "dropout_rate") if name in given})
    with jax.sharding.use_abstract_mesh(pretended(on)), seen_reasons() as reasons:
        jax.eval_shape(lambda *arrays: attend(*arrays, MASK, pattern, **given), key, key, key)
    assert reasons == ({expected} - {None})
    assert [call["implementation"] for call in fused] == ["cudnn"] * (expected == "")
