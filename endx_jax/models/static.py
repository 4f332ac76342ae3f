"""Towers without an encoder: pooled token vectors, optionally weighted (RR, section 3.1).

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". It retrieves SQuAD's paragraphs by the mean of token
vectors from GloVe or a language model, and reports better results with IDF weights.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.config_keys import MOST_TOKENS, read_keys, whole
from endx_jax.models.layout import Layout

Array = jax.Array

# By field of `StaticConfig`.
KEYS = {
    "vocab_size": whole("vocab_size", most=MOST_TOKENS),
    "width": whole("hidden_size"),
    "pad_id": whole("pad_token_id", default=0, least=0, most=MOST_TOKENS),
}


@dataclasses.dataclass(frozen=True)
class StaticConfig:
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

    vocab_size: int
    width: int
    pad_id: int = 0
    layers: int = 0
    positions: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    initializer_range: float = 0.02

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> "StaticConfig":
        """Reads the contents of a `config.json` with `"model_type": "static"`; `where` is the file, for messages.

        Raises:
          EndxError: for a missing key, or a number out of bounds.
        """
        numbers: dict[str, Any] = read_keys(config, KEYS, where)
        return cls(**numbers)


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
