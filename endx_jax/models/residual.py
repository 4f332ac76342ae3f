r"""Heads that improve on finished text vectors by adding to them (RR, section 3.2): FCRR and ConvRR.

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". A head maps a unit vector x to
$(x + s f(x)) / \|x + s f(x)\|$; heads follow each other, each on what the one before it gives.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import cast

import flax.linen as nn
import jax

from endx_jax.models.dropout import dropout, fold
from endx_jax.numerics import l2_normalize

Array = jax.Array

# Numbers of the heads' own dropout keys, apart from those that towers below them draw from.
_KEYS = 1 << 21


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    """The shape of heads.

    Attributes:
      names: which there are, in order: names in `FUNCTIONS`.
      width: of FCRR's hidden layer.
      filters: of ConvRR.
      window: dimensions that one of these sees at a time.
      stride: dimensions from one window to the next.
      scale: s, of what is added.
      dropout: of hidden activations in training.
    """

    names: tuple[str, ...]
    width: int
    filters: int
    window: int = 5
    stride: int = 2
    scale: float = 1.0
    dropout: float = 0.0


class ResidualHeads(nn.Module):
    """Heads one after another, in float32; the parameters of each stand under its name.

    Attributes:
      config: which, and their shapes.
    """

    config: HeadConfig

    @nn.compact
    def __call__(self, base: Array, dropout_keys: Array | None = None) -> Array:
        """Maps [B, E], of any norm, to [B, E] of unit norm; `dropout_keys` [B] switches dropout on."""
        embedding = l2_normalize(base)
        for number, name in enumerate(self.config.names):
            keys = None if dropout_keys is None else fold(dropout_keys, _KEYS + number)
            added = FUNCTIONS[name](self.config, name=name)(embedding, keys)
            embedding = l2_normalize(embedding + self.config.scale * added)
        return embedding


class FullyConnected(nn.Module):
    """Residual of FCRR: two linear layers with a ReLU between them."""

    config: HeadConfig

    @nn.compact
    def __call__(self, x: Array, keys: Array | None) -> Array:
        """Maps [B, E] to [B, E]."""
        hidden = nn.relu(_hidden(self.config.width)(x))
        return cast(Array, _output(x.shape[-1])(dropout(hidden, keys, self.config.dropout)))


class Convolutional(nn.Module):
    """Residual of ConvRR: filters along the vector's dimensions, a ReLU, and a linear layer.

    Nothing is pooled over the windows: in an embedding each dimension means something of its own, and a head that
    forgets where a filter was found can add next to nothing.
    """

    config: HeadConfig

    @nn.compact
    def __call__(self, x: Array, keys: Array | None) -> Array:
        """Maps [B, E] to [B, E]."""
        config = self.config
        convolution = nn.Conv(
            config.filters,
            (config.window,),
            config.stride,
            padding="VALID",
            precision=jax.lax.Precision.HIGHEST,
            name="filters",
        )
        found = nn.relu(convolution(x[:, :, None]))  # [B, windows, filters]
        found = dropout(found.reshape(len(x), -1), keys, config.dropout)
        return cast(Array, _output(x.shape[-1])(found))


FUNCTIONS: Mapping[str, Callable[..., nn.Module]] = {"fcrr": FullyConnected, "convrr": Convolutional}


def _hidden(width: int) -> nn.Dense:
    return nn.Dense(width, precision=jax.lax.Precision.HIGHEST, name="hidden")


def _output(width: int) -> nn.Dense:
    """Zeros at first, so that a new head leaves vectors as they are and what is added to them has been learned."""
    return nn.Dense(width, precision=jax.lax.Precision.HIGHEST, kernel_init=nn.initializers.zeros, name="output")
