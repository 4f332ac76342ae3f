"""A tower: token table, encoder, pooling, projection and norm, from tokens to one embedding a text.

Its parameter groups, `token_embedder`, `encoder`, `pooling` and `projection`, are the units that the parameter sharings
of Dong et al. 2022 (section 3) share or freeze between the two towers.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.batch import Tokens
from endx_jax.models.layout import lay_out
from endx_jax.models.pooling import Pooling, mean
from endx_jax.numerics import l2_normalize

Array = jax.Array


class TokenEmbedder(nn.Module):
    """The token table, `embedding` float32 [V, D].

    Attributes:
      vocab_size: V.
      width: D.
      dtype: of the vectors handed out.
      initializer_range: standard deviation of newly drawn rows.
    """

    vocab_size: int
    width: int
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    initializer_range: float = 0.02

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        """Looks up ids int32 [...]; returns [..., D], NaN for an id that the table does not have."""
        draw = nn.initializers.normal(self.initializer_range)
        table = self.param("embedding", draw, (self.vocab_size, self.width))
        rows = jnp.asarray(table).at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        return rows.astype(self.dtype)


class Projection(nn.Module):
    """The linear map after pooling, bias-free and float32, as t5x_retrieval has it (Dong et al. 2022, section 4.1)."""

    width: int

    @nn.compact
    def __call__(self, pooled: Array) -> Array:
        """Maps [B, D] to [B, E]."""
        draw = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        kernel = self.param("kernel", draw, (pooled.shape[-1], self.width))
        return jnp.matmul(pooled, kernel, precision=jax.lax.Precision.HIGHEST)


class Tower(nn.Module):
    """Encodes texts: look-up, encoder, pooling, projection, L2 norm, in this order.

    Attributes:
      token_embedder: ids [B, L] to [B, L, D].
      encoder: (token array [..., D], its layout, dropout keys [B] or None) to a token array [..., W].
      pooling: ([B, L, W], mask [B, L]) to [B, P]: a module, or a function without parameters.
      projection: [B, P] to [B, E]; None leaves E = P.
      normalize: whether embeddings have unit L2 norm, which makes inner products cosines.
    """

    token_embedder: nn.Module
    encoder: nn.Module
    pooling: Pooling = mean
    projection: nn.Module | None = None
    normalize: bool = True

    def __call__(self, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns float32 embeddings [B, E]; `dropout_keys` [B] switches dropout on."""
        embedding = self.pooling(self.encodings(tokens, dropout_keys), tokens.mask)
        if self.projection is not None:
            embedding = self.projection(embedding)
        return l2_normalize(embedding) if self.normalize else embedding

    def encodings(self, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns what pooling receives: an encoding of each token, [B, L, W]."""
        ids, layout = lay_out(tokens)
        return layout.pad(self.encoder(self.token_embedder(ids), layout, dropout_keys))
