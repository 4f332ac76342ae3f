"""Low-latency encoder with pre-compiled shapes, for a few texts at a time.

`TextEncoder` is for many texts: it prepares batches ahead in threads, and fills large batches. Here there is nothing to
prepare, and a few short questions should not cost as much as a full batch of long ones.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.batch import Tokens
from endx_jax.inference.encode import PLAIN, Output, TextEncoder

Array = jax.Array

# Padded widths of texts, in tokens, as far as a side's length goes.
WIDTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class Plan(NamedTuple):
    """Shapes of the programs, and the cost of a call.

    Attributes:
      rows: numbers of texts of programs, descending, down to 1.
      tokens: maximum padded tokens of a program, except those for one text.
      call: fixed cost of a call, mostly reading the weights, as a number of tokens.
    """

    rows: tuple[int, ...]
    tokens: int
    call: int


# MiniLM on two cores takes 3 ms a call and 0.115 ms a token. For accelerators: chosen by reasoning, not by measuring.
PLANS = {"cpu": Plan(rows=(16, 8, 4, 2, 1), tokens=1024, call=24)}
ACCELERATOR = Plan(rows=(64, 8, 1), tokens=16384, call=4096)


class Encoded(NamedTuple):
    """Embeddings of N texts.

    Attributes:
      embeddings: float32 [N, E].
      tokens: int64 [N], tokens of each text, special tokens and prompt included, after cutting.
    """

    embeddings: np.ndarray
    tokens: np.ndarray


class WarmEncoder:
    """Encodes a few texts at a time on one device, with parameters that do not change.

    Attributes:
      shapes: (side, rows, width) of all programs; `question` stands for both sides if they are one tower.
    """

    def __init__(self, encoder: TextEncoder, params: dict, output: Output = PLAIN):
        """Takes a model, without compiling anything.

        Args:
          encoder: the towers and their tokenizers.
          params: the dual encoder's.
          output: operations on the embeddings, of precision float32.
        """
        towers = encoder.model
        self._device = encoder.mesh.local_devices[0]
        self._plan = PLANS.get(self._device.platform, ACCELERATOR)
        self._processors = encoder.processors
        self._params = {
            side: jax.device_put({"shared": towers.tower_params(params, side)}, self._device)
            for side in encoder.processors
        }
        one_tower = towers.question == towers.answer
        self._tower = {side: "question" if one_tower else side for side in encoder.processors}
        lengths: dict[str, int] = {}
        for side, tower in self._tower.items():
            lengths[tower] = max(lengths.get(tower, 1), encoder.processors[side].length)
        self._widths = {tower: _widths(length) for tower, length in lengths.items()}
        self.shapes = [
            (tower, rows, width)
            for tower, widths in self._widths.items()
            for width, rows in itertools.product(widths, reversed(self._plan.rows))
            if self._fits(rows, width)
        ]

        def encode(params: dict, tower: str, ids: Array, lengths: Array) -> Array:
            mask = jnp.arange(ids.shape[1])[None] < lengths[:, None]
            return cast(Array, output(towers.encode(params, tower, Tokens(ids, mask))))

        self._encode = jax.jit(encode, static_argnums=1)

    def warm_up(self, shape: tuple[str, int, int]) -> None:
        """Compiles the program of one of `shapes`, and runs it."""
        tower, rows, width = shape
        side = next(side for side, own in self._tower.items() if own == tower)
        ids, lengths = np.zeros((rows, width), np.int32), np.ones(rows, np.int32)
        jax.block_until_ready(self._run(side, ids, lengths))

    def __call__(self, side: str, texts: Sequence[str]) -> Encoded:
        """Encodes N texts of one side, `question` or `answer`; one at least."""
        table = self._processors[side](texts)
        found = []
        for places, rows, width in self._cut(side, table.lengths):
            own = np.resize(places, rows)  # rows to fill up repeat texts
            lengths = table.lengths[own].astype(np.int32)
            found.append((places, self._run(side, table.pad(own, width).ids, lengths)))
        embeddings = np.empty((len(texts), found[0][1].shape[1]), np.float32)
        for places, part in found:
            embeddings[places] = np.asarray(part)[: len(places)]
        return Encoded(embeddings, table.lengths)

    def _run(self, side: str, ids: Array | np.ndarray, lengths: np.ndarray) -> Array:
        with jax.default_device(self._device):
            return self._encode(self._params[side], self._tower[side], ids, lengths)

    def _fits(self, rows: int, width: int) -> bool:
        return rows == 1 or rows * width <= self._plan.tokens

    def _cut(self, side: str, lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int, int]]:
        """Returns the indices and the shape of each call: the cheapest division of the texts in order of length."""
        order = np.argsort(-lengths, kind="stable")
        widths = self._widths[self._tower[side]]
        wide = [widths[n] for n in np.searchsorted(widths, lengths[order])]
        count = len(order)
        # cheapest[i]: of the texts from the i-th on, and the rows of the call that it begins with.
        cheapest, chosen = [0] * (count + 1), [0] * count
        for i in reversed(range(count)):
            choices = (
                (self._plan.call + rows * wide[i] + cheapest[min(i + rows, count)], rows)
                for rows in self._plan.rows
                if self._fits(rows, wide[i])
            )
            cheapest[i], chosen[i] = min(choices)
        first = 0
        while first < count:
            rows = chosen[first]
            yield order[first : first + rows], rows, wide[first]
            first += rows


def _widths(length: int) -> list[int]:
    """Returns the widths of programs for texts of up to `length` tokens."""
    return [*itertools.takewhile(lambda width: width < length, WIDTHS), length]
