"""Parts of a variational auto-encoder beside its towers: deviations, text decoders and the likelihood of texts.

They are not used at inference, where the posterior's mean, the projection of the tower, is the embedding.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.batch import Batch, Tokens
from endx_jax.losses.vocabulary import vocabulary_nll
from endx_jax.methods.objective import LossAndMetrics
from endx_jax.models.dropout import fold, position_keys
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.recurrent import RecurrentConfig, RecurrentLayer
from endx_jax.models.tower import TokenEmbedder
from endx_jax.settings import key

Array = jax.Array


def deviation(width: int, initial: float) -> nn.Dense:
    """Returns a linear map from a pooled text [B, P] to log sigma [B, E], where sigma is at first `initial`."""
    first, highest = nn.initializers.constant(math.log(initial)), jax.lax.Precision.HIGHEST
    return nn.Dense(width, precision=highest, kernel_init=nn.initializers.zeros, bias_init=first)


class GruDecoder(nn.Module):
    """GRU decoder whose initial state is a linear map of the latent vector (Yu et al. 2020, section 3.2).

    Attributes:
      vocab_size: vocabulary size V.
      width: width W of the state.
      dtype: dtype of the matrix products.
      reminded: also adds a linear map of the latent vector to every input word.
    """

    vocab_size: int
    width: int
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    reminded: bool = False

    @nn.compact
    def __call__(self, latent: Array, embedded: Array, mask: Array) -> Array:
        """Computes the states that predict the next words.

        Args:
          latent: latent vectors [B, E].
          embedded: embeddings [B, L, D] of the input words (teacher forcing).
          mask: bool [B, L], true for positions with a next word.

        Returns:
          States [B, L, W].
        """
        initial = nn.Dense(self.width, name="initial")(latent)
        if self.reminded:
            embedded = embedded + nn.Dense(embedded.shape[-1], name="reminder")(latent)[:, None]
        shape = RecurrentConfig("gru", layers=1, width=self.width, bidirectional=False)
        states = RecurrentLayer(shape, self.dtype, name="layers_0")(embedded.astype(self.dtype), mask, initial)
        _output_words(self, self.width)
        return states


class BagOfWordsDecoder(nn.Module):
    """Network with one hidden layer that predicts one distribution for all words (Yu et al. 2020, section 4.3).

    Attributes:
      vocab_size: vocabulary size V.
      width: width W of the hidden layer.
      dtype: dtype of the products with the vocabulary.
    """

    vocab_size: int
    width: int
    dtype: jnp.dtype = jnp.dtype(jnp.float32)

    @nn.compact
    def __call__(self, latent: Array, embedded: Array, mask: Array) -> Array:
        """Returns states [B, 1, W]; ignores the input words."""
        del embedded, mask
        hidden = nn.relu(nn.Dense(self.width, name="hidden")(latent))
        _output_words(self, self.width)
        return hidden[:, None].astype(self.dtype)


# Constructors of decoders: (vocab_size, width, dtype) -> module.
DECODERS: Mapping[str, Callable[..., nn.Module]] = {
    "gru": GruDecoder,
    "reminded_gru": functools.partial(GruDecoder, reminded=True),
    "bag_of_words": BagOfWordsDecoder,
}


def words_from_table(key: Array, table: Array, width: int) -> Array:
    """Initialises a decoder's output vocabulary [V, width] from a token table [V, D].

    Returns a random projection of the table, which keeps inner products up to noise of 1 / sqrt(width), or the table
    itself if D equals `width`. So similar words have similar scores from the start, and training needs fewer steps.
    Yu et al. initialise the input words from BERT's table and do not state the initialisation of the output words.
    """
    if width == table.shape[1]:
        return jnp.copy(table)
    projection = jax.random.normal(key, (table.shape[1], width)) / math.sqrt(width)
    return jnp.matmul(table, projection, precision=jax.lax.Precision.HIGHEST)


def _output_words(module: nn.Module, width: int) -> None:
    """Creates the output layer's parameters `vocabulary_kernel` [V, W] and `vocabulary_bias` [V] for the loss."""
    draw = nn.initializers.variance_scaling(1.0, "fan_out", "uniform")
    module.param("vocabulary_kernel", draw, (module.vocab_size, width))
    module.param("vocabulary_bias", nn.initializers.zeros, (module.vocab_size,))


# The side whose latent vectors each side's decoder reads.
SOURCES = {"own": {"question": "question", "answer": "answer"}, "other": {"question": "answer", "answer": "question"}}


@dataclasses.dataclass(frozen=True)
class DecodingSettings:
    """Settings of text decoders."""

    decodes: str = key(
        "other",
        "Side whose texts a latent vector decodes to, its own (Dual-VAEs) or the other (Cross-VAEs).",
        choices=SOURCES,
    )
    decoder: str = key("gru", "Decoder; reminded_gru adds the latent vector to each input word.", choices=DECODERS)
    decoder_width: int = key(
        768, "Width of the GRU's state or of the bag of words' hidden layer (Yu et al.: 768).", least=1
    )
    word_share: float = key(
        1.0, "Fraction of the words in the likelihood, sampled in each step, in (0, 1].", above=0, most=1
    )


@dataclasses.dataclass(frozen=True)
class TextDecoders:
    """A decoder of the questions and a decoder of the answers.

    A text's first token, BERT's [CLS], is given; the others are predicted. The token table of a side's tower embeds its
    input words.

    Attributes:
      model: the towers.
      settings: settings of the decoders.
    """

    model: DualEncoder
    settings: DecodingSettings

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Returns initial parameters by side; `words_from_table` initialises the output vocabulary."""
        params = {}
        for side, draw in zip(SIDES, jax.random.split(key), strict=True):
            tower = self.model.tower_params(dual_encoder, side)
            table = jnp.asarray(tower["token_embedder"]["embedding"])
            latent_width = tower["projection"]["kernel"].shape[1]
            inputs = jnp.zeros((1, latent_width)), jnp.zeros((1, 1, table.shape[1])), jnp.ones((1, 1), bool)
            drawn = jax.jit(self._decoder(side).init)(draw, *inputs)["params"]
            words = words_from_table(draw, table, self.settings.decoder_width)
            params[side] = drawn | {"vocabulary_kernel": words}
        return params

    def parameters(self, params: dict) -> dict:
        """Returns the parameters used for decoding, by side."""
        towers = {side: self.model.tower_params(params["dual_encoder"], side) for side in SIDES}
        return {
            side: {"decoder": params["decoder"][side], "token_embedder": towers[side]["token_embedder"]}
            for side in SIDES
        }

    def nll(self, params: dict, side: str, latents: dict[str, Array], batch: Batch) -> Array:
        """Returns the sum over one side's texts of -log p(text), in nats, given latent vectors [B, E] by side."""
        tokens = tokens_of(batch)[side]
        return self._nll(params, side, latents, tokens, target_words(tokens)[1].astype(jnp.float32))[0]

    def trained_nll(self, params: dict, rows: tuple, where: Array) -> tuple[Array, dict[str, tuple[Array, Array]]]:
        """Computes the negative log-likelihood for training, with `word_share`.

        Args:
          params: result of `parameters`.
          rows: (latent vectors [B, E] by side, tokens by side, PRNG keys [B]).
          where: bool [B], pairs to include.

        Returns:
          The sum of -log p(text) over both sides in nats, and a dict by side of (this sum, number of words in it).
        """
        latents, tokens, keys = rows
        share, by_side = self.settings.word_share, {}
        for number, side in enumerate(SIDES):
            word_keys = fold(keys, _WORDS + number)
            weights = jnp.where(where[:, None] & target_words(tokens[side])[1], 1.0, 0.0)
            if share < 1:
                # The draw of a word does not depend on the padded length.
                draw = jax.vmap(jax.vmap(lambda key: jax.random.bernoulli(key, share)))
                weights = jnp.where(draw(position_keys(fold(word_keys, 0), weights.shape[1])), weights / share, 0)
            nats, metrics = self._nll(params, side, latents, tokens[side], weights)
            by_side[side] = nats, metrics["words"]
        return by_side["question"][0] + by_side["answer"][0], by_side

    def _nll(
        self, params: dict, side: str, latents: dict[str, Array], tokens: Tokens, weights: Array
    ) -> LossAndMetrics:
        """Computes the negative log-likelihood of all words but the first of each text, by `weights` [B, L - 1]."""
        parts, latent = params[side], latents[SOURCES[self.settings.decodes][side]]
        look_up = self.model.tower(side).token_embedder.apply
        embedded = cast(Array, look_up({"params": parts["token_embedder"]}, tokens.ids[:, :-1]))
        words, mask = target_words(tokens)
        hidden = cast(Array, self._decoder(side).apply({"params": parts["decoder"]}, latent, embedded, mask))
        # A sequence decoder has one softmax for each word; a bag of words has one for all words of a text.
        shape = (-1, words.shape[1]) if hidden.shape[1] == 1 else (-1, 1)
        return vocabulary_nll(
            hidden.reshape(-1, hidden.shape[-1]),
            parts["decoder"]["vocabulary_kernel"],
            parts["decoder"]["vocabulary_bias"],
            words.reshape(shape),
            weights.reshape(shape),
        )

    def _decoder(self, side: str) -> nn.Module:
        words, settings = cast(TokenEmbedder, self.model.tower(side).token_embedder), self.settings
        return DECODERS[settings.decoder](words.vocab_size, settings.decoder_width, words.dtype)


# Key number of the decoders, distinct from those of the towers and of other draws of the objective.
_WORDS = 1 << 23


def tokens_of(batch: Batch) -> dict[str, Tokens]:
    """Returns the tokens of a batch by side, padded rather than packed, as the decoders need them."""
    sides = {side: cast(Tokens, getattr(batch, side)) for side in SIDES}
    return {side: dataclasses.replace(tokens, packing=None) for side, tokens in sides.items()}


def decoding_cost(rows: tuple) -> Array:
    """Counts the tokens of each pair without padding, int32 [B], in the rows of `TextDecoders.trained_nll`."""
    return rows[1]["question"].lengths + rows[1]["answer"].lengths


def target_words(tokens: Tokens) -> tuple[Array, Array]:
    """Returns the words to predict, all but the first, and their mask; both [B, L - 1]."""
    return tokens.ids[:, 1:], tokens.mask[:, 1:]
