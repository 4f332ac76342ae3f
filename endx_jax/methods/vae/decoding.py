"""Decoders of both sides: likelihood of texts given latent vectors (Yu et al. 2020)."""

import dataclasses
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.batch import Batch, Tokens
from endx_jax.losses.vocabulary import vocabulary_nll
from endx_jax.methods.objective import LossAndMetrics
from endx_jax.methods.vae.decoders import DECODERS, words_from_table
from endx_jax.models.dropout import fold, position_keys
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.tower import TokenEmbedder
from endx_jax.settings import check, check_choice, key

Array = jax.Array

# Whose latent vectors a side's decoder is given.
SOURCES = {
    "own": {"question": "question", "answer": "answer"},
    "other": {"question": "answer", "answer": "question"},
}


@dataclasses.dataclass(frozen=True)
class DecodingSettings:
    """Settings of a method that decodes."""

    decodes: str = key("other", "the side that latent vectors are decoded to: own (Dual-VAEs) or other (Cross-VAEs)")
    decoder: str = key(
        "gru", f"Decoder: one of {', '.join(DECODERS)}; a reminded one gets the latent vector with each word."
    )
    decoder_width: int = key(
        768, "Width of the GRU's state, or of the hidden layer of `bag_of_words` (Yu et al.: 768)."
    )
    word_dropout: float = key(
        0.0, "Share of the input words that are hidden from the GRU (Bowman et al. 2016), in [0, 1)."
    )
    word_share: float = key(1.0, "Share of the words whose likelihood is computed, drawn in each step, in (0, 1].")

    def __post_init__(self):
        check_choice("objective.decodes", self.decodes, SOURCES)
        check_choice("objective.decoder", self.decoder, DECODERS)
        check(self.decoder_width > 0, f"objective.decoder_width is {self.decoder_width}; it must be positive")
        check(0 <= self.word_dropout < 1, f"objective.word_dropout is {self.word_dropout}; it must be in [0, 1)")
        check(0 < self.word_share <= 1, f"objective.word_share is {self.word_share}; it must be in (0, 1]")


@dataclasses.dataclass(frozen=True)
class TextDecoders:
    """Decoders to questions and to answers; a text's first token, BERT's [CLS], is given.

    Input words are embedded by the token table of the tower of their side.

    Attributes:
      model: the towers.
      settings: of the decoders.
    """

    model: DualEncoder
    settings: DecodingSettings

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Draws parameters, by side; output words are initialised by `words_from_table`."""
        params = {}
        for side, draw in zip(SIDES, jax.random.split(key), strict=True):
            tower = self.model.tower_params(dual_encoder, side)
            table = jnp.asarray(tower["token_embedder"]["embedding"])
            latent_width = tower["projection"]["kernel"].shape[1]
            given = jnp.zeros((1, latent_width)), jnp.zeros((1, 1, table.shape[1])), jnp.ones((1, 1), bool)
            drawn = jax.jit(self._decoder(side).init)(draw, *given)["params"]
            words = words_from_table(draw, table, self.settings.decoder_width)
            params[side] = drawn | {"vocabulary_kernel": words}
        return params

    def parameters(self, params: dict) -> dict:
        """Returns the parameters that decoding reads, by side."""
        towers = {side: self.model.tower_params(params["dual_encoder"], side) for side in SIDES}
        return {
            side: {"decoder": params["decoder"][side], "token_embedder": towers[side]["token_embedder"]}
            for side in SIDES
        }

    def nll(self, params: dict, side: str, latents: dict[str, Array], batch: Batch) -> Array:
        """Computes the sum of -log p(text) of one side's texts, in nats, given latent vectors [B, E] by side."""
        tokens = tokens_of(batch)[side]
        return self._nll(params, side, latents, tokens, foretold(tokens)[1].astype(jnp.float32), None)[0]

    def trained_nll(self, params: dict, rows: tuple, counts: Array) -> tuple[Array, dict[str, tuple[Array, Array]]]:
        """Computes the negative log-likelihood of training, with words hidden and dropped as the settings say.

        Args:
          params: see `parameters`.
          rows: latent vectors [B, E] by side, tokens by side, and keys [B].
          counts: bool [B], the pairs that count.

        Returns:
          The sum of -log p(text) over both sides; and by side, this sum and the number of words.
        """
        latents, tokens, keys = rows
        share, found = self.settings.word_share, {}
        for number, side in enumerate(SIDES):
            own = fold(keys, _WORDS + number)
            weights = jnp.where(counts[:, None] & foretold(tokens[side])[1], 1.0, 0.0)
            if share < 1:
                weights = jnp.where(_coins(fold(own, 0), weights.shape[1], share), weights / share, 0)
            nats, metrics = self._nll(params, side, latents, tokens[side], weights, fold(own, 1))
            found[side] = nats, metrics["words"]
        return found["question"][0] + found["answer"][0], found

    def _nll(
        self, params: dict, side: str, latents: dict[str, Array], tokens: Tokens, weights: Array, keys: Array | None
    ) -> LossAndMetrics:
        """Computes the weighted sum of -log p(word) of texts of one side: see `vocabulary_nll`.

        Args:
          params: see `parameters`.
          side: of the texts.
          latents: [B, E] by side; `settings.decodes` selects one.
          tokens: [B, L].
          weights: [B, L - 1], of the words after the first; 0 where there are none.
          keys: [B], of word dropout; None: without.
        """
        own, latent = params[side], latents[SOURCES[self.settings.decodes][side]]
        look_up = self.model.tower(side).token_embedder.apply
        embedded = cast(Array, look_up({"params": own["token_embedder"]}, tokens.ids[:, :-1]))
        words, mask = foretold(tokens)
        if keys is not None and self.settings.word_dropout:
            seen = _coins(keys, words.shape[1], 1 - self.settings.word_dropout)
            embedded = jnp.where(seen[:, :, None], embedded, 0)
        hidden = cast(Array, self._decoder(side).apply({"params": own["decoder"]}, latent, embedded, mask))
        # Of a sequence every word has a softmax of its own, of a bag a text has one for all its words.
        shape = (-1, words.shape[1]) if hidden.shape[1] == 1 else (-1, 1)
        return vocabulary_nll(
            hidden.reshape(-1, hidden.shape[-1]),
            own["decoder"]["vocabulary_kernel"],
            own["decoder"]["vocabulary_bias"],
            words.reshape(shape),
            weights.reshape(shape),
        )

    def _decoder(self, side: str) -> nn.Module:
        words, settings = cast(TokenEmbedder, self.model.tower(side).token_embedder), self.settings
        return DECODERS[settings.decoder](words.vocab_size, settings.decoder_width, words.dtype)


# Apart from the numbers of the towers' keys and of what else an objective draws.
_WORDS = 1 << 23


def tokens_of(batch: Batch) -> dict[str, Tokens]:
    """Returns the tokens of both sides of a batch, padded, as decoders need them."""
    sides = {side: cast(Tokens, getattr(batch, side)) for side in SIDES}
    return {side: dataclasses.replace(tokens, packing=None) for side, tokens in sides.items()}


def tokens_of_decoded(rows: tuple) -> Array:
    """Counts the real tokens of each pair, int32 [B], of the rows of `TextDecoders.trained_nll`."""
    return rows[1]["question"].lengths + rows[1]["answer"].lengths


def foretold(tokens: Tokens) -> tuple[Array, Array]:
    """Returns the words to predict, all but the first, and where they exist: [B, L - 1]."""
    return tokens.ids[:, 1:], tokens.mask[:, 1:]


def _coins(keys: Array, length: int, probability: float) -> Array:
    """Draws bool [B, length], true with that probability; a position's value does not depend on the length."""
    return jax.vmap(jax.vmap(lambda key: jax.random.bernoulli(key, probability)))(position_keys(keys, length))
