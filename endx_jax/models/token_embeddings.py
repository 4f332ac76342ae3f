"""Embeddings of tokens, for late interaction: which tokens of a text have one, and query expansion (ColBERT)."""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.batch import Tokens
from endx_jax.models.config_keys import MOST_SIZE
from endx_jax.models.sharding_hints import platform
from endx_jax.settings import key, require

Array = jax.Array

TOKENS = "tokens"  # the pooling


@dataclasses.dataclass(frozen=True)
class TokenSettings:
    """Settings of the pooling `tokens`, `config.model.tokens`."""

    skip: tuple[str, ...] = key(
        (), "Tokens of answers without an embedding, by the tokenizer's names (ColBERT: punctuation); empty: none."
    )
    expand: int = key(
        0,
        "Shorter questions are filled up to this many tokens with [MASK], each with an embedding (ColBERT: 32).",
        least=0,
        most=MOST_SIZE,
    )
    attend: bool = key(False, "A question's tokens attend to its [MASK] tokens (ColBERT: False).")


@dataclasses.dataclass(frozen=True)
class TokenPooling:
    """Pooling of the token vectors of documents after encoding: see `inference.token_pooling`.

    Attributes:
      factor: vectors are reduced to about one of this many; 1 pools nothing.
      protected: number of first vectors that are kept, such as that of [CLS].
      normalize: scales the resulting vectors to unit norm.
    """

    factor: float = 1.0
    protected: int = 1
    normalize: bool = True

    def __post_init__(self):
        require(self.factor >= 1, f"pool_factor is {self.factor}; it must be 1 or more")


UNPOOLED = TokenPooling()


@dataclasses.dataclass(frozen=True)
class TokenChoice:
    """Tokens of one side's texts that have an embedding: all real tokens, except as the attributes say.

    Attributes:
      skip: ids of tokens without one.
      expand: number of tokens to which shorter texts are filled up with `fill`; 0: none.
      fill: id of the token that fills texts up.
      attend: tokens attend to those that fill the text up.
    """

    skip: tuple[int, ...] = ()
    expand: int = 0
    fill: int = 0
    attend: bool = False

    def read(self, tokens: Tokens) -> Tokens:
        """Returns the tokens [B, max(L, expand)] that the encoder reads; expanded texts are not packed."""
        if not self.expand:
            return tokens
        require(self.attend or platform() != "tpu", "model.tokens.expand on a TPU needs model.tokens.attend=True")
        missing = max(0, self.expand - tokens.ids.shape[1])
        ids, mask = (jnp.pad(x, ((0, 0), (0, missing))) for x in (tokens.ids, tokens.mask))
        filled = self._filled(mask)
        return Tokens(jnp.where(filled, self.fill, ids), mask | filled if self.attend else mask)

    def counted(self, tokens: Tokens) -> Array:
        """Returns bool [B, L], true for the tokens with an embedding among those that `read` returned."""
        counted = tokens.mask | self._filled(tokens.mask)
        return counted & ~jnp.isin(tokens.ids, jnp.asarray(self.skip, jnp.int32)) if self.skip else counted

    def _filled(self, mask: Array) -> Array:
        return ~mask & (jnp.arange(mask.shape[1]) < self.expand)[None]
