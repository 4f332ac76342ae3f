"""Scaled dot-product attention, fused on GPUs where there is no attention dropout."""

import jax
import jax.numpy as jnp

from endx_jax.models.dropout import attention_dropout
from endx_jax.models.layout import Layout
from endx_jax.models.sharding_hints import platform

Array = jax.Array


def attend_within(
    query: Array,
    key: Array,
    value: Array,
    layout: Layout,
    *,
    scale: float,
    bias: Array | None = None,
    dropout_keys: Array | None = None,
    dropout_rate: float = 0.0,
) -> Array:
    """Computes attention of every token over the real tokens of its own text.

    Args:
      query: token array [..., H, Dh].
      key: alike.
      value: alike.
      layout: of the tokens.
      scale: multiplies the scores.
      bias: added to the scaled scores by position, [1, H, L, L] with L the layout's width.
      dropout_keys: keys [B], or None outside training.
      dropout_rate: of the attention weights.

    Returns:
      A token array like `value`.
    """
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
                dropout_keys=keys,
                dropout_rate=dropout_rate,
            )
        )
    return layout.join(attended)


def attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array,
    *,
    scale: float,
    bias: Array | None = None,
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
      dropout_keys: keys [B], or None outside training.
      dropout_rate: of the attention weights.

    Returns:
      [B, L, H, Dh] in the dtype of `value`; the softmax is float32.
    """
    dropping = dropout_keys is not None and dropout_rate > 0
    if not dropping and has_fused_attention(query, key, platform()):
        lengths = jnp.sum(mask, axis=1, dtype=jnp.int32)
        return jax.nn.dot_product_attention(
            query, key, value, bias=bias, scale=scale, key_value_seq_lengths=lengths, implementation="cudnn"
        )
    # Heads first: CPUs multiply stacks of matrices, and would turn them over inside every product.
    query, key, value = (jnp.moveaxis(x, 2, 1) for x in (query, key, value))
    scores = jnp.einsum("bhld,bhmd->bhlm", query, key, preferred_element_type=jnp.float32) * scale
    if bias is not None:
        scores = scores + bias
    scores = jnp.where(mask[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
    # The softmax's division comes last, where it is of [L, Dh] a head and not of [L, M].
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if dropping:
        weights = attention_dropout(weights, dropout_keys, dropout_rate)
    attended = jnp.einsum("bhlm,bhmd->bhld", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
    return jnp.moveaxis(attended / total, 1, 2).astype(value.dtype)


def has_fused_attention(query: Array, key: Array, backend: str) -> bool:
    """Returns true if cuDNN's flash attention takes the arrays: half precision, heads up to 128 wide, even lengths."""
    # The backend first: lengths may be symbolic, in an export, and then neither even nor odd.
    if backend != "gpu" or query.dtype not in (jnp.bfloat16, jnp.float16):
        return False
    odd = query.shape[1] % 2 or key.shape[1] % 2 or query.shape[-1] % 8
    return not odd and query.shape[-1] <= 128
