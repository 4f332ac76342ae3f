"""Scaled dot-product attention, and the choice of its implementation by platform, layout and dropout."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from endx_jax.models.dropout import attention_dropout, words_by_place
from endx_jax.models.dropout import words as dropout_words
from endx_jax.models.layout import Layout, Padded
from endx_jax.models.packed_attention import BLOCK, attend_packed
from endx_jax.models.sharding_hints import BATCH_AXES, TENSOR, axes_left, platform
from endx_jax.numerics import round_up

Array = jax.Array

# Oldest GPUs that cuDNN's flash attention runs on: Ampere.
LEAST_CAPABILITY = 8.0

_seen = contextvars.ContextVar[set[str] | None]("seen", default=None)


def attend_within(
    query: Array,
    key: Array,
    value: Array,
    layout: Layout,
    *,
    scale: float,
    bias: Array | None = None,
    causal: bool = False,
    window: int | None = None,
    dropout_keys: Array | None = None,
    dropout_rate: float = 0.0,
) -> Array:
    """Computes attention of every token over the real tokens of its own text.

    Args:
      query: token array [..., H, Dh].
      key: token array [..., K, Dh]; each of the K heads serves H / K adjacent heads of the queries (Ainslie et al.
        2023).
      value: token array [..., K, Dh].
      layout: layout of the tokens.
      scale: factor of the scores.
      bias: added to the scaled scores. [1, H, L, L], where L is the layout's width; if `uses_kernel`, float32
        [2L - 1, H], indexed by the key's position minus the query's plus L - 1.
      causal: a token attends to no later token.
      window: maximum distance, in tokens, over which a token attends; None for the whole text.
      dropout_keys: keys [B], or None outside training.
      dropout_rate: dropout rate of the attention weights.

    Returns:
      A token array like `query`.
    """
    if uses_kernel(layout, query.shape[-2]):
        repeats = query.shape[-2] // key.shape[-2]
        key, value = (x if repeats == 1 else jnp.repeat(x, repeats, axis=-2) for x in (key, value))
        keys = layout.token_keys(dropout_keys) if dropout_rate > 0 else None
        return _attend_in_kernel(query, key, value, layout, scale, bias, causal, window, keys, dropout_rate)
    attended = []
    for (row_query, row_key, row_value), mask, keys in layout.rows((query, key, value), dropout_keys):
        length = mask.shape[1]
        attended.append(
            attend(
                row_query,
                row_key,
                row_value,
                mask,
                scale=scale,
                bias=None if bias is None else bias[..., :length, :length],
                causal=causal,
                window=window,
                dropout_keys=keys,
                dropout_rate=dropout_rate,
            )
        )
    return layout.join(attended)


def uses_kernel(layout: Layout, heads: int) -> bool:
    """Returns true if the kernel for concatenated texts applies: on TPUs.

    The number of heads must be a multiple of the size of the `tensor` axis, and the number of padded texts of the size
    of the axes that divide the batch.
    """
    if platform() != "tpu":
        return False
    if not isinstance(layout, Padded):
        return _divide(0, heads)
    rows, length = layout.mask.shape
    symbolic = not (isinstance(rows, int) and isinstance(length, int))  # in an export
    return not symbolic and _divide(rows, heads)


def _divide(rows: int, heads: int) -> bool:
    """Returns true if the devices of the mesh axes that are left to the compiler take equal parts of rows and heads."""
    axes = axes_left()
    return heads % axes.get(TENSOR, 1) == 0 and rows % math.prod(axes.get(axis, 1) for axis in BATCH_AXES) == 0


def _row_axes() -> tuple[str, ...]:
    """Returns the axes that divide rows among those that are left to the compiler."""
    return tuple(axis for axis in BATCH_AXES if axis in axes_left())


def _attend_in_kernel(
    query: Array,
    key: Array,
    value: Array,
    layout: Layout,
    scale: float,
    bias: Array | None,
    causal: bool,
    window: int | None,
    token_keys: Array | None,
    rate: float,
) -> Array:
    """Computes `attend_within` by `attend_packed` on each device, with its texts and heads.

    The compiler cannot partition a kernel; it rejects one if any mesh axis is automatic. Padded texts are concatenated
    with their padding, on each device.
    """
    axes, heads, length = axes_left(), query.shape[-2], query.shape[1]
    width = layout.width if window is None else min(layout.width, window + 1)
    words = None if token_keys is None else dropout_words(token_keys)

    def attend_rows(query, key, value, position, lengths, words, bias):
        rows, tokens = len(query), len(query) * length
        filled = round_up(tokens, BLOCK)

        def concatenate(x: Array) -> Array:
            return jnp.pad(x.reshape(tokens, *x.shape[2:]), [(0, filled - tokens), *[(0, 0)] * (x.ndim - 2)])

        query, key, value, position, lengths = (concatenate(x) for x in (query, key, value, position, lengths))
        place = jnp.arange(filled)
        first = place - position
        begin, end = first, first + lengths
        if window is not None:
            begin, end = jnp.maximum(begin, place - window), jnp.minimum(end, place + window + 1)
        real = position < lengths
        if words is not None:
            words = words_by_place(jnp.stack([concatenate(word) for word in words]), first, heads)
        split = query.shape[1] != heads
        out = attend_packed(
            query,
            key,
            value,
            jnp.where(real, begin, 0),
            jnp.where(real, end, 0),
            width=width,
            scale=scale,
            causal=causal,
            by_distance=bias,
            words=words,
            rate=rate,
            first_head=jax.lax.axis_index(TENSOR) * query.shape[1] if split else 0,
            all_heads=heads,
            lengths=layout.longest(rows),
        )
        return out[:tokens].reshape(rows, length, *out.shape[1:])

    arrays = (query, key, value, *layout.extents(), words, bias)
    if not axes:
        return attend_rows(*arrays)
    by_row = PartitionSpec(_row_axes() if isinstance(layout, Padded) else None)
    by_head = PartitionSpec(*by_row, None, TENSOR)
    specs = (by_head, by_head, by_head, by_row, by_row, PartitionSpec(None, *by_row), PartitionSpec(None, TENSOR))
    return jax.shard_map(attend_rows, in_specs=specs, out_specs=by_head, axis_names=set(axes), check_vma=False)(*arrays)


def attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array,
    *,
    scale: float,
    bias: Array | None = None,
    causal: bool = False,
    window: int | None = None,
    dropout_keys: Array | None = None,
    dropout_rate: float = 0.0,
) -> Array:
    """Computes attention of every query position over the real positions of its row.

    Args:
      query: [B, L, H, Dh].
      key: [B, M, K, Dh]; see `attend_within` for K.
      value: [B, M, K, Dh].
      mask: bool [B, M], true at the positions to attend to, which precede the others.
      scale: factor of the scores: 1/sqrt(Dh) in BERT, 1 in T5.
      bias: added to the scaled scores, broadcast to [B, H, L, M].
      causal: as in `attend_within`; L must be M.
      window: as in `attend_within`; L must be M.
      dropout_keys: keys [B], or None outside training.
      dropout_rate: dropout rate of the attention weights.

    Returns:
      [B, L, H, Dh] in the dtype of `value`; the softmax is float32.
    """
    dropping = dropout_keys is not None and dropout_rate > 0
    if isinstance(mask.shape[1], int) and window is not None and mask.shape[1] <= window + 1:
        window = None  # the window covers the text; lengths are symbolic in an export
    rate = dropout_rate if dropping else 0.0
    reason = plain_because(query, key, platform(), biased=bias is not None, window=window, dropout_rate=rate)
    if (seen := _seen.get()) is not None:
        seen.add(reason)
    if not reason:
        return _attend_by_cudnn(query, key, value, mask, scale, causal)
    # Heads first: CPUs multiply batches of matrices and would otherwise transpose them in every product.
    query, key, value = (jnp.moveaxis(x, 2, 1) for x in (query, key, value))
    heads, groups = query.shape[1], key.shape[1]
    scores = _regrouped(product("bhld,bhmd->bhlm", _regrouped(query, groups), key), heads) * scale
    if bias is not None:
        scores = scores + bias
    attended_to = mask[:, None, None, :]
    if window is not None or causal:
        place = jnp.arange(mask.shape[1])
        before = place[:, None] - place[None, :]
        near = jnp.abs(before) <= (mask.shape[1] if window is None else window)
        attended_to &= (near & (before >= 0) if causal else near)[None, None]
    # Adding a bias saves memory: the gradient of `where` would keep a mask in the shape of the scores.
    scores = scores + jnp.where(attended_to, 0, jnp.finfo(scores.dtype).min).astype(scores.dtype)
    # The division of the softmax comes last, on [L, Dh] per head instead of [L, M].
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if dropping:
        weights = attention_dropout(weights, dropout_keys, dropout_rate)
    attended = _regrouped(product("bhlm,bhmd->bhld", _regrouped(weights.astype(value.dtype), groups), value), heads)
    return jnp.moveaxis(attended / total, 1, 2).astype(value.dtype)


def _attend_by_cudnn(query: Array, key: Array, value: Array, mask: Array, scale: float, causal: bool) -> Array:
    """Computes `attend` by cuDNN on each device, with its texts and heads.

    JAX cannot let the compiler partition cuDNN's attention if only some of the mesh axes are automatic. A text without
    tokens attends to its first padding: cuDNN's result for length 0 is undefined, and could be nan.
    """

    def attend_rows(query, key, value, lengths):
        return jax.nn.dot_product_attention(
            query, key, value, scale=scale, is_causal=causal, key_value_seq_lengths=lengths, implementation="cudnn"
        )

    lengths = jnp.maximum(jnp.sum(mask, axis=1, dtype=jnp.int32), 1)
    arrays, axes = (query, key, value, lengths), axes_left()
    if not axes:
        return attend_rows(*arrays)
    by_row = PartitionSpec(_row_axes())
    by_head = PartitionSpec(*by_row, None, TENSOR)
    specs = (by_head, by_head, by_head, by_row)
    return jax.shard_map(attend_rows, in_specs=specs, out_specs=by_head, axis_names=set(axes), check_vma=False)(*arrays)


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


def plain_because(
    query: Array, key: Array, backend: str, *, biased: bool = False, window: int | None = None, dropout_rate: float = 0
) -> str:
    """Returns the reason why attention on a backend is plain; empty if cuDNN's flash attention takes the arrays.

    Args:
      query: [B, L, H, Dh].
      key: [B, M, K, Dh].
      backend: platform of the devices.
      biased: the scores have a bias.
      window: as in `attend_within`, if it is narrower than the text.
      dropout_rate: dropout rate of the attention weights; 0 outside training.
    """
    # The backend first: lengths may be symbolic, in an export, and then neither even nor odd.
    if backend != "gpu":
        return f"devices are of platform {backend}"
    if biased:
        return "the scores have a bias"
    if window is not None:
        return f"a window of {window} tokens before and after is narrower than some texts"
    head = query.shape[-1]
    if head % 8 or head > 128:
        return f"heads are {head} wide, and cuDNN takes multiples of 8 up to 128"
    if query.shape[1] % 2 or key.shape[1] % 2:
        return "a batch has rows of an odd length"
    if not _divide(query.shape[0], key.shape[-2]):
        return "the devices take no equal parts of rows and heads"
    if missing := _missing_for_cudnn():
        return missing
    settings = {}
    if query.dtype not in (jnp.bfloat16, jnp.float16):
        settings[f"model.dtype is {query.dtype}"] = "bfloat16"
    if dropout_rate:
        settings[f"model.attention_dropout is {dropout_rate:g}"] = "0"
    fuse = "fuse" if len(settings) > 1 else "fuses"
    return f"{' and '.join(settings)}; {' and '.join(settings.values())} {fuse} it" if settings else ""


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


@contextlib.contextmanager
def seen_reasons() -> Iterator[set[str]]:
    """Collects the results of `plain_because` for all attention that is traced inside."""
    reasons: set[str] = set()
    token = _seen.set(reasons)
    try:
        yield reasons
    finally:
        _seen.reset(token)
