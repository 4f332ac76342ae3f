"""Towers without an encoder: pooled token vectors, optionally weighted (RR, section 3.1).

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". It retrieves SQuAD's paragraphs by the mean of token
vectors from GloVe or a language model, and reports better results with IDF weights.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.config_keys import MOST_TOKENS, HuggingFaceConfig, whole
from endx_jax.models.layout import Layout

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class StaticConfig(HuggingFaceConfig):
    """Shape of static token vectors, as in the `config.json` that `pretrained.static` writes.

    Attributes:
      vocab_size: V.
      width: D, `hidden_size`.
      pad_id: `pad_token_id`.
      layers: none.
      positions: None, as any length can be encoded.
      dropout: none.
      attention_dropout: none.
      initializer_range: standard deviation of newly drawn token vectors.
    """

    vocab_size: int = whole("vocab_size", most=MOST_TOKENS)
    width: int = whole("hidden_size")
    pad_id: int = whole("pad_token_id", default=0, least=0, most=MOST_TOKENS)
    layers: int = 0
    positions: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    initializer_range: float = 0.02


class NoEncoder(nn.Module):
    """Encoder that returns token embeddings unchanged."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Empty, since there are no layers."""
        return ()

    def __call__(
        self, embedded: Array, layout: Layout, dropout_keys: Array | None = None, *, every: bool = False
    ) -> Array | list[Array]:
        """Returns the token array; with `every`, an empty list."""
        del layout, dropout_keys
        return [] if every else embedded


class TokenWeights(nn.Module):
    """Weight of each token of the vocabulary, `weight` float32 [V], initialised to ones.

    Attributes:
      vocab_size: V.
    """

    vocab_size: int

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        """Looks up ids int32 [...]: float32 [...]."""
        return jnp.asarray(self.param("weight", nn.initializers.ones, (self.vocab_size,)))[ids]
