r"""Residual heads on frozen text vectors (RR, section 3.2): FCRR and ConvRR.

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". A head maps a unit vector x to
$(x + s f(x)) / \|x + s f(x)\|$; heads are applied one after another.
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
    """Shapes of residual heads.

    Attributes:
      names: the heads in order, by their names in `FUNCTIONS`.
      width: of FCRR's hidden layer.
      filters: number of ConvRR's filters.
      window: number of dimensions that a filter reads.
      stride: dimensions from one window to the next.
      scale: s, the factor of the residual.
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
    """Sequence of heads, in float32; the parameters of each are under its name.

    Attributes:
      config: names and shapes of the heads.
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

    There is no pooling over windows: each dimension of an embedding has a meaning of its own, so a head that loses the
    position of a filter can add little.
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
    """Linear output layer, initialised to zeros so that a new head does not change vectors."""
    return nn.Dense(width, precision=jax.lax.Precision.HIGHEST, kernel_init=nn.initializers.zeros, name="output")
