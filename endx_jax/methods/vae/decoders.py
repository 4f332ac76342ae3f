"""Parts of a variational auto-encoder beside the towers: deviations of embeddings, and decoders to words.

They are not used in inference: the mean of a posterior is the tower's projection of the pooled text.
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
    """Linear map from a pooled text to the logarithm of its posterior's deviation.

    Attributes:
      width: E, of the latent space.
      initial: the deviation of every text and dimension before training.
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
    """GRU over a text whose first state is a linear map of the latent vector (Yu et al. 2020, section 3.2).

    Attributes:
      vocab_size: V.
      width: W of its state.
      dtype: of the products.
      reminded: also adds the latent vector to every input word.
    """

    vocab_size: int
    width: int
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    reminded: bool = False

    @nn.compact
    def __call__(self, latent: Array, embedded: Array, mask: Array) -> Array:
        """Computes states that each predict the next word.

        Args:
          latent: [B, E].
          embedded: [B, L, D], the input words (teacher forcing).
          mask: bool [B, L], false where there is no next word.

        Returns:
          [B, L, W].
        """
        initial = nn.Dense(self.width, name="initial")(latent)
        if self.reminded:
            embedded = embedded + nn.Dense(embedded.shape[-1], name="reminder")(latent)[:, None]
        shape = RecurrentConfig("gru", layers=1, width=self.width, bidirectional=False)
        states = RecurrentLayer(shape, self.dtype, name="layers_0")(embedded.astype(self.dtype), mask, initial)
        _output_words(self, self.width)
        return states


class BagOfWordsDecoder(nn.Module):
    """Network with one hidden layer and one distribution for all words of a text (Yu et al. 2020, section 4.3).

    Attributes:
      vocab_size: V.
      width: W of the hidden layer.
      dtype: of the products with the vocabulary.
    """

    vocab_size: int
    width: int
    dtype: jnp.dtype = jnp.dtype(jnp.float32)

    @nn.compact
    def __call__(self, latent: Array, embedded: Array, mask: Array) -> Array:
        """Returns states [B, 1, W]; unlike `GruDecoder` it reads no words."""
        del embedded, mask
        hidden = nn.relu(nn.Dense(self.width, name="hidden")(latent))
        _output_words(self, self.width)
        return hidden[:, None].astype(self.dtype)


# From V, W and dtype to a module.
DECODERS: Mapping[str, Callable[..., nn.Module]] = {
    "gru": GruDecoder,
    "reminded_gru": functools.partial(GruDecoder, reminded=True),
    "bag_of_words": BagOfWordsDecoder,
}


def words_from_table(key: Array, table: Array, width: int) -> Array:
    """Initialises a decoder's vocabulary [V, width] so that words similar in a token table [V, D] are similar in it.

    It is a random projection of the table, which keeps inner products up to noise of 1 / sqrt(width); with the same
    width it is the table itself. (Yu et al. initialise input words from BERT's table, and do not state the
    initialisation of output words.)
    """
    if width == table.shape[1]:
        return jnp.copy(table)
    projection = jax.random.normal(key, (table.shape[1], width)) / math.sqrt(width)
    return jnp.matmul(table, projection, precision=jax.lax.Precision.HIGHEST)


def _output_words(module: nn.Module, width: int) -> None:
    """Draws the output layer, which losses read: `vocabulary_kernel` [V, W] and `vocabulary_bias` [V]."""
    draw = nn.initializers.variance_scaling(1.0, "fan_out", "uniform")
    module.param("vocabulary_kernel", draw, (module.vocab_size, width))
    module.param("vocabulary_bias", nn.initializers.zeros, (module.vocab_size,))
