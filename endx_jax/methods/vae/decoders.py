"""Modules that a variational auto-encoder adds to a tower: standard deviations of its embeddings, and text decoders.

They are not used at inference, where the posterior's mean, the projection of the tower, is the embedding.
"""

import functools
import math
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.recurrent import RecurrentConfig, RecurrentLayer

Array = jax.Array


class Deviation(nn.Module):
    """Linear map from a pooled text to the logarithm of its posterior's standard deviation.

    Attributes:
      width: width E of the latent space.
      initial: initial standard deviation of every text and dimension.
    """

    width: int
    initial: float = 1.0

    @nn.compact
    def __call__(self, pooled: Array) -> Array:
        """Maps [B, P] to log sigma [B, E]."""
        kernel = self.param("kernel", nn.initializers.zeros, (pooled.shape[-1], self.width))
        bias = self.param("bias", nn.initializers.constant(math.log(self.initial)), (self.width,))
        return jnp.matmul(pooled, kernel, precision=jax.lax.Precision.HIGHEST) + bias[None]


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
