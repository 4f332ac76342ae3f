"""Towers without an encoder, which pool token vectors with or without weights (RR, section 3.1).

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". It retrieves SQuAD's paragraphs by the mean of
GloVe's or a language model's token vectors, and finds IDF-weighted means better.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.config_keys import MOST_TOKENS, HuggingFaceConfig, float_key, int_key
from endx_jax.models.layout import Layout

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class TokensConfig(HuggingFaceConfig):
    """Token and dropout settings in a `config.json` of any architecture.

    Attributes:
      vocab_size: number of rows V of the token table.
      width: number of columns D of the token table.
      positions: maximum input length in tokens; None if not stated.
      dropout: dropout rate of hidden layers; 0.1 if not stated.
      attention_dropout: dropout rate of attention weights; 0.1 if not stated.
      initializer_range: standard deviation of new token vectors.
      pad_id: id of the padding token.
    """

    vocab_size: int = int_key("vocab_size", most=MOST_TOKENS)
    width: int = int_key("embedding_size", "hidden_size", "d_model", "n_embd", "dim")
    positions: int | None = int_key("max_position_embeddings", "n_positions", default=None)
    dropout: float = float_key("hidden_dropout_prob", "dropout_rate", "resid_pdrop", "dropout", default=0.1)
    attention_dropout: float = float_key(
        "attention_probs_dropout_prob", "dropout_rate", "attn_pdrop", "attention_dropout", default=0.1
    )
    initializer_range: float = 0.02
    pad_id: int = int_key("pad_token_id", default=0, least=-1, most=MOST_TOKENS)

    @property
    def table_width(self) -> int:
        """Columns of the token table."""
        return self.width


@dataclasses.dataclass(frozen=True)
class StaticConfig(TokensConfig):
    """Config of static token vectors, an encoder without layers, in the format that `pretrained.static` writes."""

    dropout: float = 0.0
    attention_dropout: float = 0.0
    layers: int = 0
    shared_layers: bool = False


class NoEncoder(nn.Module):
    """Encoder that returns the token embeddings unchanged."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the layers; empty."""
        return ()

    def __call__(
        self, embedded: Array, layout: Layout, dropout_keys: Array | None = None, *, every: bool = False
    ) -> Array | list[Array]:
        """Returns the token array, or an empty list of layers if `every` is set."""
        del layout, dropout_keys
        return [] if every else embedded


class TokenWeights(nn.Module):
    """Weight of each token of the vocabulary, `weight` float32 [V], initialised to ones."""

    vocab_size: int

    @nn.compact
    def __call__(self, ids: Array) -> Array:
        """Looks up the weights, float32 [...], of ids, int32 [...]."""
        return jnp.asarray(self.param("weight", nn.initializers.ones, (self.vocab_size,)))[ids]
