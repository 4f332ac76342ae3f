"""Scaled dot-product attention, fused where nothing has to happen to its weights."""

import jax
import jax.numpy as jnp

from endx_jax.models.dropout import attention_dropout

Array = jax.Array


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
    """Attention of every query position over the real positions of its row.

    Args:
      query: [B, L, H, Dh].
      key: [B, M, H, Dh].
      value: [B, M, H, Dh].
      mask: bool [B, M], true at positions that may be attended to.
      scale: multiplies the scores: 1/sqrt(Dh) in BERT, 1 in T5.
      bias: added to the scaled scores, broadcast to [B, H, L, M].
      dropout_keys: keys [B], or None outside training.
      dropout_rate: of the attention weights.

    Returns:
      [B, L, H, Dh] in the dtype of `value`; the softmax is float32.
    """
    attendable = mask[:, None, None, :]
    if dropout_keys is None or dropout_rate == 0.0:
        return jax.nn.dot_product_attention(query, key, value, bias=bias, mask=attendable, scale=scale)
    # The fused form has no dropout, so the weights are written out here.
    scores = jnp.einsum("blhd,bmhd->bhlm", query, key, preferred_element_type=jnp.float32) * scale
    if bias is not None:
        scores = scores + bias
    scores = jnp.where(attendable, scores, jnp.finfo(scores.dtype).min)
    weights = attention_dropout(jax.nn.softmax(scores, axis=-1), dropout_keys, dropout_rate)
    return jnp.einsum("bhlm,bmhd->blhd", weights.astype(value.dtype), value)
