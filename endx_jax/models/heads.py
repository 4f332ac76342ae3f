r"""Residual heads on frozen text vectors (RR, section 3.2), FCRR and ConvRR, and the table of all heads of towers.

RR is "Text Embeddings for Retrieval from a Large Knowledge Base". A head maps a unit vector x to
$(x + f(x)) / \|x + f(x)\|$; heads are applied one after another.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import flax.linen as nn
import jax

from endx_jax.models.config_keys import MOST_SIZE
from endx_jax.models.dropout import dropout, fold
from endx_jax.models.dual_encoder import SIDES
from endx_jax.numerics import l2_normalize
from endx_jax.settings import check_choice, from_mapping, key, require

Array = jax.Array

# Numbers of the heads' own dropout keys, apart from those that towers below them draw from.
_KEYS = 1 << 21

# Dimensions that a filter of ConvRR sees at a time, and from one window to the next.
WINDOW, STRIDE = 5, 2

# From a side and the width E of its tower's embeddings to the module that ends the tower; None: the side has none.
MakeHead = Callable[[str, int], nn.Module | None]


class ResidualHeads(nn.Module):
    """Sequence of heads of `HeadSettings`, in float32; the parameters of each are under its name in `FUNCTIONS`."""

    names: tuple[str, ...]
    width: int
    filters: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, base: Array, dropout_keys: Array | None = None) -> Array:
        """Maps [B, E], of any norm, to [B, E] of unit norm; `dropout_keys` [B] switches dropout on."""
        embedding = l2_normalize(base)
        for number, name in enumerate(self.names):
            keys = fold(dropout_keys, _KEYS + number)
            function, size = FUNCTIONS[name], self.filters if name == CONVRR else self.width
            embedding = l2_normalize(embedding + function(size, self.dropout, name=name)(embedding, keys))
        return embedding


class FullyConnected(nn.Module):
    """Residual of FCRR: two linear layers with a ReLU between them."""

    width: int
    dropout: float

    @nn.compact
    def __call__(self, x: Array, keys: Array | None) -> Array:
        """Maps [B, E] to [B, E]."""
        hidden = nn.relu(nn.Dense(self.width, precision=jax.lax.Precision.HIGHEST, name="hidden")(x))
        return cast(Array, _output(x.shape[-1])(dropout(hidden, keys, self.dropout)))


class Convolutional(nn.Module):
    """Residual of ConvRR: filters along the vector's dimensions, a ReLU, and a linear layer.

    There is no pooling over windows: the output layer must know which dimensions a filter saw.
    """

    filters: int
    dropout: float

    @nn.compact
    def __call__(self, x: Array, keys: Array | None) -> Array:
        """Maps [B, E] to [B, E]."""
        convolution = nn.Conv(
            self.filters, (WINDOW,), STRIDE, padding="VALID", precision=jax.lax.Precision.HIGHEST, name="filters"
        )
        activations = nn.relu(convolution(x[:, :, None]))  # [B, windows, filters]
        activations = dropout(activations.reshape(len(x), -1), keys, self.dropout)
        return cast(Array, _output(x.shape[-1])(activations))


FCRR, CONVRR = "fcrr", "convrr"
FUNCTIONS: Mapping[str, Callable[..., nn.Module]] = {FCRR: FullyConnected, CONVRR: Convolutional}


@dataclasses.dataclass(frozen=True)
class HeadSettings:
    """Settings of the heads, `config.objective.head`."""

    names: str = key(FCRR, f"Heads in order, joined by +: {', '.join(FUNCTIONS)}.")
    sides: str = key("both", "Towers with heads. The other tower stays as it is.", choices=("both", *SIDES))
    width: int = key(1024, "Hidden width of fcrr (RR: unstated).", least=1, most=MOST_SIZE)
    filters: int = key(
        16, f"Filters of convrr, of width {WINDOW} and stride {STRIDE} (RR: 1024).", least=1, most=MOST_SIZE
    )
    dropout: float = key(0.1, "Dropout rate of a head's hidden activations, in [0, 1) (RR: 0.1).", least=0, below=1)

    def __post_init__(self):
        for name in self.functions:
            check_choice("objective.head.names", name, FUNCTIONS)
        once = len(set(self.functions)) == len(self.functions)
        require(once, f"objective.head.names is {self.names}: a head can be there once")

    @property
    def functions(self) -> tuple[str, ...]:
        """Names in `FUNCTIONS`, in order."""
        return tuple(self.names.split("+"))

    def of_side(self, side: str, width: int) -> ResidualHeads | None:
        """Returns the heads of a side's tower, whose embeddings are [B, width]; None if the side has none."""
        require(
            CONVRR not in self.functions or width >= WINDOW,
            f"objective.head.names={self.names} looks at {WINDOW} dimensions at a time, and embeddings have {width}",
        )
        if self.sides not in ("both", side):
            return None
        return ResidualHeads(self.functions, self.width, self.filters, self.dropout)


def _output(width: int) -> nn.Dense:
    """Linear output layer, initialised to zeros so that a new head does not change vectors."""
    return nn.Dense(width, precision=jax.lax.Precision.HIGHEST, kernel_init=nn.initializers.zeros, name="output")


def _residual(settings: Mapping[str, Any], where: str) -> MakeHead:
    return from_mapping(HeadSettings, settings.get("head", {}), f"{where}.head").of_side


HEADS: dict[str, Callable[[Mapping[str, Any], str], MakeHead]] = {"residual": _residual}
"""Functions that return the `MakeHead` of a method, by the method's name.

Their arguments are the settings in a model folder and the name of these settings in messages. `methods.register` adds
the function of a user's method.
"""
