"""Scaled dot-product attention, and the choice of its implementation by platform, layout and dropout."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from endx_jax.models.dropout import attention_dropout
from endx_jax.models.layout import Layout, Packed
from endx_jax.models.packed_attention import attend_packed
from endx_jax.models.sharding_hints import TENSOR, axes_left, platform

Array = jax.Array


def attend_within(
    query: Array,
    key: Array,
    value: Array,
    layout: Layout,
    *,
    scale: float,
    bias: Array | None = None,
    window: int | None = None,
    dropout_keys: Array | None = None,
    dropout_rate: float = 0.0,
) -> Array:
    """Computes attention of every token over the real tokens of its own text.

    Args:
      query: token array [..., H, Dh].
      key: alike.
      value: alike.
      layout: layout of the tokens.
      scale: multiplies the scores.
      bias: added to the scaled scores: by position, [1, H, L, L] with L the layout's width; or where `is_fused_packed`,
        by the key's position less the query's, float32 [2L - 1, H] from -(L - 1) on.
      window: tokens attend to those at most so many positions before and after them; None: to all of their text.
      dropout_keys: keys [B], or None outside training.
      dropout_rate: dropout rate of the attention weights.

    Returns:
      A token array like `value`.
    """
    if isinstance(layout, Packed) and is_fused_packed(layout, query.shape[-2], dropout_keys, dropout_rate):
        width = layout.width if window is None else min(layout.width, window + 1)
        kernel = _split_heads(functools.partial(attend_packed, width=width, scale=scale))
        return kernel(query[0], key[0], value[0], *layout.bounds(window), bias)[None]
    attended = []
    for (own_query, own_key, own_value), mask, keys in layout.rows((query, key, value), dropout_keys):
        length = mask.shape[1]
        attended.append(
            attend(
                own_query,
                own_key,
                own_value,
                mask,
                scale=scale,
                bias=None if bias is None else bias[..., :length, :length],
                window=window,
                dropout_keys=keys,
                dropout_rate=dropout_rate,
            )
        )
    return layout.join(attended)


def is_fused_packed(layout: Layout, heads: int, dropout_keys: Array | None, dropout_rate: float) -> bool:
    """Returns true if attention runs without buckets: on TPUs, of packed texts, without attention dropout.

    The heads must divide by the devices of the `tensor` axis.
    """
    dropping = dropout_keys is not None and dropout_rate > 0
    if dropping or not isinstance(layout, Packed) or platform() != "tpu":
        return False
    return heads % axes_left().get(TENSOR, 1) == 0


def _split_heads(kernel):
    """Runs a kernel of (query, key, value, begin, end, bias) on each device with its own heads.

    The compiler splits no kernel by itself, and refuses one wherever any axis of a mesh is left to it.
    """
    axes, heads, whole = axes_left(), PartitionSpec(None, TENSOR), PartitionSpec()

    def run(*arrays):
        return kernel(*arrays[:-1], by_distance=arrays[-1])

    if not axes:
        return run
    specs = (heads, heads, heads, whole, whole, heads)
    return jax.shard_map(run, in_specs=specs, out_specs=heads, axis_names=set(axes), check_vma=False)


def attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array,
    *,
    scale: float,
    bias: Array | None = None,
    window: int | None = None,
    dropout_keys: Array | None = None,
    dropout_rate: float = 0.0,
) -> Array:
    """Computes attention of every query position over the real positions of its row.

    Args:
      query: [B, L, H, Dh].
      key: [B, M, H, Dh].
      value: [B, M, H, Dh].
      mask: bool [B, M], true at positions that may be attended to; they come first.
      scale: multiplies the scores: 1/sqrt(Dh) in BERT, 1 in T5.
      bias: added to the scaled scores, broadcast to [B, H, L, M].
      window: as in `attend_within`; L must be M.
      dropout_keys: keys [B], or None outside training.
      dropout_rate: dropout rate of the attention weights.

    Returns:
      [B, L, H, Dh] in the dtype of `value`; the softmax is float32.
    """
    dropping = dropout_keys is not None and dropout_rate > 0
    if isinstance(mask.shape[1], int) and window is not None and mask.shape[1] <= window + 1:
        window = None  # it covers the text; lengths are symbolic in an export
    if not dropping and bias is None and window is None and has_fused_attention(query, key, platform()):
        lengths = jnp.sum(mask, axis=1, dtype=jnp.int32)
        return jax.nn.dot_product_attention(
            query, key, value, scale=scale, key_value_seq_lengths=lengths, implementation="cudnn"
        )
    # Heads first: CPUs multiply stacks of matrices, and would turn them over inside every product.
    query, key, value = (jnp.moveaxis(x, 2, 1) for x in (query, key, value))
    scores = product("bhld,bhmd->bhlm", query, key) * scale
    if bias is not None:
        scores = scores + bias
    attended_to = mask[:, None, None, :]
    if window is not None:
        place = jnp.arange(mask.shape[1])
        attended_to &= (jnp.abs(place[:, None] - place[None, :]) <= window)[None, None]
    # Added, as the gradient of a choice would keep the mask in the shape of the scores.
    scores = scores + jnp.where(attended_to, 0, jnp.finfo(scores.dtype).min).astype(scores.dtype)
    # The softmax's division comes last, where it is of [L, Dh] a head and not of [L, M].
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if dropping:
        weights = attention_dropout(weights, dropout_keys, dropout_rate)
    attended = product("bhlm,bhmd->bhld", weights.astype(value.dtype), value)
    return jnp.moveaxis(attended / total, 1, 2).astype(value.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def product(subscripts: str, a: Array, b: Array) -> Array:
    """Computes an einsum of two arrays in float32, whose gradient's products are in the dtype of the arrays.

    The gradient of such a result is float32, and without the cast so would be both products of the backward pass.
    """
    return jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)


@product.defjvp
def _product_jvp(subscripts, arrays, tangents):
    (a, b), (of_a, of_b) = arrays, tangents
    # Written out, so that rematerialisation policies see a product.
    result = jnp.einsum(subscripts, a, b, preferred_element_type=jnp.float32)
    tangent = jnp.einsum(subscripts, of_a, b) + jnp.einsum(subscripts, a, of_b)
    return result, tangent.astype(result.dtype)


def has_fused_attention(query: Array, key: Array, backend: str) -> bool:
    """Returns true if cuDNN's flash attention takes the arrays: half precision, heads up to 128 wide, even lengths."""
    # The backend first: lengths may be symbolic, in an export, and then neither even nor odd.
    if backend != "gpu" or query.dtype not in (jnp.bfloat16, jnp.float16):
        return False
    odd = query.shape[1] % 2 or key.shape[1] % 2 or query.shape[-1] % 8
    return not odd and query.shape[-1] <= 128
