"""Scaled dot-product attention, and the choice of its implementation by platform, layout and dropout."""

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from endx_jax.models.dropout import attention_dropout
from endx_jax.models.layout import BLOCK, Layout, Padded
from endx_jax.models.sharding_hints import BATCH_AXES, TENSOR, axes_left, platform
from endx_jax.numerics import round_up

Array = jax.Array

# Oldest GPUs that cuDNN's flash attention runs on: Ampere.
LEAST_CAPABILITY = 8.0

_reasons = contextvars.ContextVar[set[str] | None]("reasons", default=None)


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Static properties of attention.

    Attributes:
      scale: factor of the scores: 1/sqrt(Dh) in BERT, 1 in T5.
      causal: a token attends to no later token.
      window: maximum distance, in tokens, over which a token attends; None for the whole text.
      dropout_rate: dropout rate of the attention weights in training.
    """

    scale: float
    causal: bool = False
    window: int | None = None
    dropout_rate: float = 0.0


def attend_within(
    query: Array,
    key: Array,
    value: Array,
    layout: Layout,
    pattern: Pattern,
    bias: Array | None = None,
    dropout_keys: Array | None = None,
) -> Array:
    """Computes attention of every token over the real tokens of its own text.

    Args:
      query: token array [..., H, Dh].
      key: token array [..., K, Dh]; each of the K heads serves H / K adjacent heads of the queries (Ainslie et al.
        2023).
      value: token array [..., K, Dh].
      layout: layout of the tokens.
      pattern: which tokens attend to which, and how.
      bias: added to the scaled scores, [1, H, L, L], where L is the layout's width; None adds nothing.
      dropout_keys: keys [B], or None outside training.

    Returns:
      A token array like `query`.
    """
    pattern = pattern if dropout_keys is not None else dataclasses.replace(pattern, dropout_rate=0.0)
    packed = not isinstance(layout, Padded)
    if platform() == "tpu" and not _noted(plain_because(query, key, pattern, biased=bias is not None, packed=packed)):
        return _attend_in_kernel(query, key, value, layout, pattern)
    attended = []
    for (row_query, row_key, row_value), mask, keys in layout.rows((query, key, value), dropout_keys):
        length = mask.shape[1]
        row_bias = None if bias is None else bias[..., :length, :length]
        attended.append(attend(row_query, row_key, row_value, mask, pattern, row_bias, keys))
    return layout.join(attended)


def _attend_in_kernel(query: Array, key: Array, value: Array, layout: Layout, pattern: Pattern) -> Array:
    """Computes `attend_within` by `attend_packed` on each device, where padded texts are joined with their padding."""
    from endx_jax.models.packed_attention import Plan, attend_packed, block_size  # with Pallas, for TPUs only

    repeats, length = query.shape[-2] // key.shape[-2], query.shape[1]
    key, value = (x if repeats == 1 else jnp.repeat(x, repeats, axis=-2) for x in (key, value))
    window = pattern.window
    width = layout.width if window is None else min(layout.width, window + 1)

    def attend_rows(query, key, value, position, lengths):
        rows, tokens = len(query), len(query) * length
        filled = round_up(tokens, BLOCK)

        def concatenate(x: Array) -> Array:
            return jnp.pad(x.reshape(tokens, *x.shape[2:]), [(0, filled - tokens), *[(0, 0)] * (x.ndim - 2)])

        query, key, value, position, lengths = (concatenate(x) for x in (query, key, value, position, lengths))
        place = jnp.arange(filled)
        begin, end = place - position, place - position + lengths
        if window is not None:
            begin, end = jnp.maximum(begin, place - window), jnp.minimum(end, place + window + 1)
        bounds = jnp.where(position < lengths, jnp.stack([begin, end]), 0)
        texts = rows if isinstance(layout, Padded) else len(layout.lengths)
        block, (_, heads, head_width) = block_size(filled, width), query.shape
        plan = Plan(filled, heads, head_width, width, block, pattern.scale, pattern.causal, texts)
        out = attend_packed(query, key, value, bounds, plan)
        return out[:tokens].reshape(rows, length, *out.shape[1:])

    return _on_each_device(attend_rows, query, key, value, *layout.extents(), split_rows=isinstance(layout, Padded))


def _on_each_device(function: Callable, *arrays: Array, split_rows: bool = True) -> Array:
    """Runs a function of arrays [rows, tokens, heads, ...] and [rows, ...] on each device, with its rows and heads."""
    axes = axes_left()  # the compiler can't partition kernels, and rejects them if any mesh axis is automatic
    if not axes:
        return function(*arrays)
    by_row = PartitionSpec(tuple(axis for axis in BATCH_AXES if axis in axes) if split_rows else None)
    by_head = PartitionSpec(*by_row, None, TENSOR)
    specs = tuple(by_head if x.ndim == 4 else by_row for x in arrays)
    return jax.shard_map(function, in_specs=specs, out_specs=by_head, axis_names=set(axes), check_vma=False)(*arrays)


def attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array,
    pattern: Pattern,
    bias: Array | None = None,
    dropout_keys: Array | None = None,
) -> Array:
    """Computes attention of every query position over the real positions of its row.

    Args:
      query: [B, L, H, Dh].
      key: [B, M, K, Dh]; see `attend_within` for K.
      value: [B, M, K, Dh].
      mask: bool [B, M], true at the positions to attend to, which precede the others.
      pattern: which positions attend to which, and how; with `causal` or `window` L must be M.
      bias: added to the scaled scores, broadcast to [B, H, L, M].
      dropout_keys: keys [B], or None outside training.

    Returns:
      [B, L, H, Dh] in the dtype of `value`. The softmax is computed in float32; its weights are rounded to that dtype.
    """
    window, rate = pattern.window, 0.0 if dropout_keys is None else pattern.dropout_rate
    if isinstance(mask.shape[1], int) and window is not None and mask.shape[1] <= window + 1:
        window = None  # the window covers the text; lengths are symbolic in an export
    pattern = dataclasses.replace(pattern, window=window, dropout_rate=rate)
    if platform() == "gpu" and not _noted(plain_because(query, key, pattern, biased=bias is not None)):
        return _attend_by_cudnn(query, key, value, mask, pattern)
    # Heads first: CPUs multiply batches of matrices and would otherwise transpose them in every product.
    query, key, value = (jnp.moveaxis(x, 2, 1) for x in (query, key, value))
    heads, groups = query.shape[1], key.shape[1]
    scores = _regrouped(product("bhld,bhmd->bhlm", _regrouped(query, groups), key), heads) * pattern.scale
    if bias is not None:
        scores = scores + bias
    attended_to = mask[:, None, None, :]
    if window is not None or pattern.causal:
        place = jnp.arange(mask.shape[1])
        before = place[:, None] - place[None, :]
        near = jnp.abs(before) <= (mask.shape[1] if window is None else window)
        attended_to &= (near & (before >= 0) if pattern.causal else near)[None, None]
    # Adding a bias saves memory: the gradient of `where` would keep a mask in the shape of the scores.
    scores = scores + jnp.where(attended_to, 0, jnp.finfo(scores.dtype).min).astype(scores.dtype)
    # The division of the softmax comes last, on [L, Dh] per head instead of [L, M].
    weights, total = _exponentials(scores, value.dtype)
    weights = attention_dropout(weights, dropout_keys, rate)
    attended = _regrouped(product("bhlm,bhmd->bhld", _regrouped(weights, groups), value), heads)
    return jnp.moveaxis(attended / jax.lax.stop_gradient(total), 1, 2).astype(value.dtype)


def _attend_by_cudnn(query: Array, key: Array, value: Array, mask: Array, pattern: Pattern) -> Array:
    """Computes `attend` by cuDNN on each device, with its texts and heads."""

    def attend_rows(query, key, value, lengths):
        attend = functools.partial(jax.nn.dot_product_attention, scale=pattern.scale, is_causal=pattern.causal)
        return attend(query, key, value, key_value_seq_lengths=lengths, implementation="cudnn")

    # A text without tokens attends to its first padding: cuDNN's result for length 0 is undefined, and could be nan.
    lengths = jnp.maximum(jnp.sum(mask, axis=1, dtype=jnp.int32), 1)
    return _on_each_device(attend_rows, query, key, value, lengths)


def _regrouped(x: Array, groups: int) -> Array:
    """Reshapes [B, H, R, D] to [B, groups, H R / groups, D]: the rows of adjacent heads one after another, or back."""
    batch, heads, rows, width = x.shape
    return x if heads == groups else x.reshape(batch, groups, heads * rows // groups, width)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def product(subscripts: str, a: Array, b: Array) -> Array:
    """Computes an einsum of two arrays in float32; the products of its gradient are in the dtype of the arrays.

    Without the cast, both products of the backward pass would be float32.
    """
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


@product.defjvp
def _product_jvp(subscripts, arrays, tangents):
    (a, b), (of_a, of_b) = arrays, tangents
    # Repeats the einsum so that rematerialisation policies see a product.
    result = jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)
    tangent = jnp.einsum(subscripts, of_a, b) + jnp.einsum(subscripts, a, of_b)
    return result, tangent.astype(result.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _exponentials(scores: Array, dtype: jnp.dtype) -> tuple[Array, Array]:
    """Returns exp(scores - maximum of the row) in `dtype`, and its sums over rows in float32, [..., 1].

    The gradient is that of the softmax if the caller divides by the sums as constants (`stop_gradient`). So no scores
    in float32 and no dividend are kept, which would take the most memory of a step.
    """
    weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return weights.astype(dtype), jnp.sum(weights, axis=-1, keepdims=True)


def _exponentials_forward(scores, dtype):
    weights, total = _exponentials(scores, dtype)
    weights = jax.lax.optimization_barrier(weights)  # or compilers would keep the scores and compute exp again
    return (weights, total), (weights, total)


def _exponentials_backward(dtype, kept, gradients):
    del dtype
    weights, total = kept
    gradient, weights = gradients[0].astype(total.dtype), weights.astype(total.dtype)
    return ((gradient - jnp.sum(gradient * weights, axis=-1, keepdims=True) / total) * weights,)


_exponentials.defvjp(_exponentials_forward, _exponentials_backward)


def plain_because(query: Array, key: Array, pattern: Pattern, *, biased: bool = False, packed: bool = False) -> str:
    """Returns the reason why attention on a GPU or TPU is plain; empty if a fused kernel takes the arrays.

    They are those of `attend`, or `packed`, [1, T, ...] on each device. The pattern has the dropout rate 0 outside
    training, and no window that covers every text.
    """
    on_gpu, (rows, length, heads, head) = platform() == "gpu", query.shape
    if not all(isinstance(size, int) for size in query.shape):
        return "shapes are symbolic, in an export"
    if biased:
        return "the scores have a bias"
    heads, axes = key.shape[-2] if on_gpu else heads, axes_left()
    parts = math.prod(axes.get(axis, 1) for axis in BATCH_AXES)
    if heads % axes.get(TENSOR, 1) or (rows % parts and not packed):
        return f"the {rows} rows or {heads} heads do not divide evenly among the devices"
    needs = {"attention_dropout": ("0", f"{pattern.dropout_rate:g}")} if pattern.dropout_rate else {}
    if on_gpu:
        if pattern.window is not None:
            return f"a window of {pattern.window} tokens before and after is narrower than some texts"
        if head % 8 or head > 128:
            return f"heads are {head} wide, and cuDNN takes multiples of 8 up to 128"
        if length % 2 or key.shape[1] % 2:
            return "a batch has rows of an odd length"
        if missing := _missing_for_cudnn():
            return missing
        if query.dtype not in (jnp.bfloat16, jnp.float16):
            needs = {"dtype": ("bfloat16", str(query.dtype))} | needs
    if not needs:
        return ""
    wanted = " and ".join(f"model.{name}={value}" for name, (value, _) in needs.items())
    return f"fused attention needs {wanted} (now {' and '.join(value for _, value in needs.values())})"


@functools.cache
def _missing_for_cudnn() -> str:
    """Returns what this process lacks to compile cuDNN's attention, or its GPUs to run it; empty if nothing."""
    device, some = jax.local_devices()[0], jax.ShapeDtypeStruct((1, 2, 1, 8), jnp.bfloat16)
    try:
        jax.eval_shape(functools.partial(jax.nn.dot_product_attention, implementation="cudnn"), some, some, some)
    except (RuntimeError, NotImplementedError) as refused:  # on ROCm too
        return f"JAX can't use cuDNN here ({str(refused).rstrip('.')})"
    old = device.platform == "gpu" and float(device.compute_capability) < LEAST_CAPABILITY
    return f"{device.device_kind} is too old for cuDNN's attention" if old else ""


def _noted(reason: str) -> str:
    """Returns the reason, and adds it to those of `seen_reasons`."""
    if (reasons := _reasons.get()) is not None:
        reasons.add(reason)
    return reason


@contextlib.contextmanager
def seen_reasons() -> Iterator[set[str]]:
    """Collects the results of `plain_because` for all attention that is traced inside, on GPUs and TPUs."""
    reasons: set[str] = set()
    token = _reasons.set(reasons)
    try:
        yield reasons
    finally:
        _reasons.reset(token)
