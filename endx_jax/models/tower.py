"""Tower from tokens to one embedding per text: token table, encoder, pooling, projection, head and norm.

Its parameter groups `token_embedder`, `encoder`, `pooling`, `projection` and `head` are the units that parameter
sharings (Dong et al. 2022, section 3) share between the towers or freeze. The group `token_weights` is never trained.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.batch import Texts, Tokens, TokenVectors, Vectors
from endx_jax.models.layout import lay_out
from endx_jax.models.pooling import Pooling, mean
from endx_jax.models.products import FLOAT32
from endx_jax.models.token_embeddings import TokenChoice
from endx_jax.numerics import l2_normalize

Array = jax.Array


class TokenEmbedder(nn.Module):
    """Token table, `embedding` float32 [V, D], whose vectors are returned in `dtype`.

    New rows are normal with standard deviation `initializer_range`.
    """

    vocab_size: int
    width: int
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    initializer_range: float = 0.02

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        """Looks up the vectors [..., D] of ids, int32 [...]; NaN for ids outside the table."""
        draw = nn.initializers.normal(self.initializer_range)
        table = self.param("embedding", draw, (self.vocab_size, self.width))
        rows = jnp.asarray(table).at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        return rows.astype(self.dtype)


# Functions after a projection, by their names in settings.
FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {"identity": lambda x: x, "tanh": jnp.tanh}


class Projection(nn.Module):
    """Float32 projection after pooling, by default linear (Dong et al. 2022, opening of section 4) and without bias.

    Attributes:
      width: width E of the result.
      use_bias: adds a bias.
      function: applied to the result, of `FUNCTIONS`.
    """

    width: int
    use_bias: bool = False
    function: str = "identity"

    @nn.compact
    def __call__(self, pooled: Array) -> Array:
        """Maps [..., D] to [..., E]."""
        draw = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
        kernel = self.param("kernel", draw, (pooled.shape[-1], self.width))
        projected = jnp.matmul(pooled, kernel, precision=jax.lax.Precision.HIGHEST)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.width,))
            projected = projected + jnp.expand_dims(bias, range(projected.ndim - 1))
        return FUNCTIONS[self.function](projected)


class Tower(nn.Module):
    """Embeds texts by token look-up, encoder, pooling, projection, head and L2 norm, in this order.

    Attributes:
      token_embedder: maps ids [B, L] to [B, L, D].
      encoder: maps (token array [..., D], its layout, dropout keys [B] or None) to a token array [..., W].
      pooling: maps (encodings [B, L, W], mask [B, L]) to [B, P]; a module, or a function without parameters.
      projection: maps [B, P] to [B, E]; None means E = P.
      head: maps ([B, E], dropout keys [B] or None) to [B, E]; None for towers without residual heads.
      normalize: scales embeddings to unit L2 norm, so that inner products are cosines.
      token_weights: maps ids [...] to factors [...] of the tokens' encodings; None means 1.
      tokens: tokens that have an embedding, for the pooling `tokens`; None for one embedding per text.
      layer_weights: weights of a mixture of layers that replaces the last layer (RR, section 3.1): of the token table's
        vectors and of each of the encoder's `outputs`; None means the last layer.
    """

    token_embedder: nn.Module
    encoder: nn.Module
    pooling: Pooling = mean
    projection: nn.Module | None = None
    head: nn.Module | None = None
    normalize: bool = True
    token_weights: nn.Module | None = None
    tokens: TokenChoice | None = None
    layer_weights: tuple[float, ...] | None = None

    @property
    def product_dtype(self) -> str | None:
        """Data type of the factors of the encoder's linear maps if it computes in float32; else None."""
        rounded = getattr(getattr(self.encoder, "config", None), "product_dtype", FLOAT32)
        return rounded if self.token_embedder.dtype == jnp.float32 else None

    def __call__(self, texts: Texts, dropout_keys: Array | None = None) -> Any:
        """Returns float32 embeddings [B, E], or `TokenVectors`; dropout is on if `dropout_keys` [B] are given."""
        if isinstance(texts, Vectors):
            return self.finish(texts.values, dropout_keys)
        if self.tokens is not None:
            texts = self.tokens.read(texts)
            return TokenVectors(self.finish(self.base(texts, dropout_keys), dropout_keys), self.tokens.counted(texts))
        return self.finish(self.base(texts, dropout_keys), dropout_keys)

    def encodings(self, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns the encodings [B, L, W], the input of pooling."""
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
        """Returns the token vectors and each of the encoder's `outputs`, each [B, L, D]."""
        ids, layout = lay_out(tokens)
        embedded = self.token_embedder(ids)
        return [layout.pad(layer) for layer in (embedded, *self.encoder(embedded, layout, every=True))]

    def pool(self, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns the pooled texts [B, P], the input of the projection."""
        return self.pooling(self.encodings(tokens, dropout_keys), tokens.mask)

    def base(self, tokens: Tokens, dropout_keys: Array | None = None) -> Array:
        """Returns the projected texts [B, E], the input of the head."""
        return self.project(self.pool(tokens, dropout_keys))

    def project(self, pooled: Array) -> Array:
        """Maps pooled texts [B, P] to [B, E] by the projection."""
        return pooled if self.projection is None else self.projection(pooled)

    def finish(self, base: Array, dropout_keys: Array | None = None) -> Array:
        """Maps projected texts [B, E] to embeddings [B, E] by the head and the norm."""
        embedding = base if self.head is None else self.head(base, dropout_keys)
        return l2_normalize(embedding) if self.normalize else embedding
