"""Tower from tokens to one embedding per text: token table, encoder, pooling, projection, head and norm.

Its parameter groups `token_embedder`, `encoder`, `pooling` and `projection` are the units that the parameter sharings
of Dong et al. 2022 (section 3) share or freeze; `token_weights`, if there are any, are not trained, and a `head` is not
shared.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.batch import Texts, Tokens, Vectors
from endx_jax.models.layout import lay_out
from endx_jax.models.pooling import Pooling, mean
from endx_jax.numerics import l2_normalize

Array = jax.Array


class TokenEmbedder(nn.Module):
    """Token table, `embedding` float32 [V, D].

    Attributes:
      vocab_size: V.
      width: D.
      dtype: of the vectors returned.
      initializer_range: standard deviation of newly drawn rows.
    """

    vocab_size: int
    width: int
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    initializer_range: float = 0.02

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        """Looks up ids int32 [...]; returns [..., D], NaN for an id outside of the table."""
        draw = nn.initializers.normal(self.initializer_range)
        table = self.param("embedding", draw, (self.vocab_size, self.width))
        rows = jnp.asarray(table).at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        return rows.astype(self.dtype)


class Projection(nn.Module):
    """Linear projection after pooling, bias-free and float32, as in t5x_retrieval (Dong et al. 2022, section 4.1)."""

    width: int

    @nn.compact
    def __call__(self, pooled: Array) -> Array:
        """Maps [B, D] to [B, E]."""
        draw = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        kernel = self.param("kernel", draw, (pooled.shape[-1], self.width))
        return jnp.matmul(pooled, kernel, precision=jax.lax.Precision.HIGHEST)


class Tower(nn.Module):
    """Encodes texts: look-up, encoder, pooling, projection, head, L2 norm, in this order.

    Attributes:
      token_embedder: ids [B, L] to [B, L, D].
      encoder: (token array [..., D], its layout, dropout keys [B] or None) to a token array [..., W].
      pooling: ([B, L, W], mask [B, L]) to [B, P]: a module, or a function without parameters.
      projection: [B, P] to [B, E]; None leaves E = P.
      head: ([B, E], dropout keys [B] or None) to [B, E], which a method adds at the end of the tower; None: none.
      normalize: scales embeddings to unit L2 norm, which makes inner products cosines.
      token_weights: ids [...] to [...], factors of the encodings before pooling; None: all are one.
      layer_weights: weights of a mixture of layers that is pooled in place of the last layer (RR, section 3.1): one for
        the token table's vectors and one for each of the encoder's `outputs`; None: the last layer.
    """

    token_embedder: nn.Module
    encoder: nn.Module
    pooling: Pooling = mean
    projection: nn.Module | None = None
    head: nn.Module | None = None
    normalize: bool = True
    token_weights: nn.Module | None = None
    layer_weights: tuple[float, ...] | None = None

    def __call__(self, texts: Texts, dropout_keys: Array | None = None) -> Array:
        """Returns float32 embeddings [B, E]; `dropout_keys` [B] switches dropout on."""
        if isinstance(texts, Vectors):
            return self.finish(texts.values, dropout_keys)
        return self.finish(self.base(texts, dropout_keys), dropout_keys)

    def encodings(self, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns the input of pooling: an encoding of each token, [B, L, W]."""
        ids, layout = lay_out(tokens)
        embedded = self.token_embedder(ids)
        if self.layer_weights is None:
            encodings = self.encoder(embedded, layout, dropout_keys)
        else:
            layers = [embedded, *self.encoder(embedded, layout, dropout_keys, every=True)]
            encodings = sum(w * x for w, x in zip(self.layer_weights, layers, strict=True) if w)
        if self.token_weights is not None:
            encodings = encodings * self.token_weights(ids)[..., None]
        return layout.pad(encodings)

    def layers(self, tokens: Tokens) -> list[Array]:
        """Returns the token table's vectors and each of the encoder's `outputs`, [B, L, D] each."""
        ids, layout = lay_out(tokens)
        embedded = self.token_embedder(ids)
        return [layout.pad(layer) for layer in (embedded, *self.encoder(embedded, layout, every=True))]

    def pool(self, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns the input of the projection, [B, P]."""
        return self.pooling(self.encodings(tokens, dropout_keys), tokens.mask)

    def base(self, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns the input of the head, [B, E]."""
        return self.project(self.pool(tokens, dropout_keys))

    def project(self, pooled: Array) -> Array:
        """Maps the input of the projection [B, P] to the input of the head [B, E]."""
        return pooled if self.projection is None else self.projection(pooled)

    def finish(self, base: Array, dropout_keys: Array | None = None) -> Array:
        """Maps the input of the head [B, E] to embeddings."""
        embedding = base if self.head is None else self.head(base, dropout_keys)
        return l2_normalize(embedding) if self.normalize else embedding
