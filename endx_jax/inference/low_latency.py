"""Low-latency encoder for a few texts, with programs that are compiled in advance.

`TextEncoder` is for many texts: its threads prepare large batches ahead of use. This encoder splits the texts of a call
into the shapes that cost least, so that three short questions are not padded to sixteen long ones.
"""

import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.batch import Tokens
from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.inference.encode import PLAIN, EmbeddingFormat, TextEncoder
from endx_jax.inference.text_batches import split_by_length, store_batch
from endx_jax.numerics import rung
from endx_jax.parallel.mesh import check_process

Array = jax.Array

# Programs for texts of more tokens are compiled when such a text comes: running them in advance would take the memory
# of the longest text, which for language models of 32,768 tokens is more than most machines have.
PREPARED = 2048


def program_width(length: int, limit: int) -> int:
    """Returns the padded width of texts of up to `length` tokens: two between neighbouring powers of two, from 8."""
    return min(rung(max(8, length), 4), limit)


class Programs(NamedTuple):
    """Shapes of programs and cost of a call.

    Attributes:
      rows: numbers of rows of programs, descending to 1.
      tokens: maximum padded tokens of a program with more than one row.
      call: fixed cost of a call in padded tokens, mostly the time to read the weights.
      prepared: tokens of the longest texts whose programs are compiled in advance.
    """

    rows: tuple[int, ...]
    tokens: int
    call: int
    prepared: int = PREPARED

    def rows_of(self, width: int) -> list[int]:
        """Returns the numbers of rows of the programs of this width."""
        return [rows for rows in self.rows if rows == 1 or rows * width <= self.tokens]

    def shapes(self, limit: int) -> list[tuple[int, int]]:
        """Returns the (rows, width) of all programs to prepare for texts of up to `limit` tokens."""
        widths = {program_width(length, limit) for length in range(1, min(limit, self.prepared) + 1)}
        return [(rows, width) for width in sorted(widths) for rows in reversed(self.rows_of(width))]

    def split(
        self, lengths: np.ndarray, limit: int, compiled: Collection[tuple[int, int]] = ()
    ) -> Iterator[tuple[np.ndarray, int, int]]:
        """Splits texts into the cheapest calls of `compiled` programs (rows, width), as `split_by_length`.

        A text that is too long for all of them gets another program.
        """

        def width_of(length: int) -> int:
            width = program_width(length, limit)
            return min((other for _, other in compiled if other >= width), default=width)

        def rows_of(width: int) -> list[int]:
            rows = self.rows_of(width)
            return [n for n in rows if (n, width) in compiled] or rows

        count = len(lengths)
        widths = [width_of(length) for length in sorted(lengths.tolist(), reverse=True)]
        # costs[i]: lowest cost of the texts from the i-th on; first_rows[i]: rows of the first of their calls.
        costs, first_rows = [0] * (count + 1), [0] * count
        for i in reversed(range(count)):
            costs[i], first_rows[i] = min(
                (self.call + rows * widths[i] + costs[min(i + rows, count)], rows) for rows in rows_of(widths[i])
            )
        return split_by_length(lengths, width_of, lambda width, left: first_rows[count - left])


# On two CPU cores, MiniLM takes 3 ms per call and 0.115 ms per token. Those of accelerators were not measured.
PROGRAMS = {"cpu": Programs(rows=(16, 8, 4, 2, 1), tokens=1024, call=24)}
ACCELERATOR = Programs(rows=(64, 8, 1), tokens=16384, call=4096)


class Encoded(NamedTuple):
    """Embeddings of N texts.

    Attributes:
      embeddings: embeddings, float32 [N, E], or `RaggedVectors`.
      tokens: number of tokens of each text after truncation, int64 [N], including special tokens and prompt.
      truncated: bool [N], true for texts that were truncated; may be empty if none was.
    """

    embeddings: Any
    tokens: np.ndarray
    truncated: np.ndarray = np.zeros(0, bool)


class LowLatencyEncoder:
    """Encodes a few texts at a time on one device with constant parameters.

    Attributes:
      shapes: shapes (side, rows, width) of all programs to prepare; the side is `question` if both towers have the
        same architecture.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        params: dict,
        output: EmbeddingFormat = PLAIN,
        programs: Programs | None = None,
    ):
        """Places the parameters on the device; compiles nothing.

        Args:
          encoder: towers and text processors.
          params: parameters of the dual encoder.
          output: operations on the embeddings, of precision float32.
          programs: shapes of programs; None: those of the device's platform.
        """
        towers = encoder.model
        self._device = encoder.mesh.local_devices[0]
        self._programs = programs or PROGRAMS.get(self._device.platform, ACCELERATOR)
        self._processors = encoder.processors
        placed = functools.cache(lambda side: jax.device_put(towers.encoding_params(params, side), self._device))
        siamese = towers.is_siamese(params)  # both sides share one copy of the kernels in bfloat16
        self._params = {side: placed("question" if siamese else side) for side in encoder.processors}
        one_tower = towers.question == towers.answer
        self._tower = {side: "question" if one_tower else side for side in encoder.processors}
        self._limits = dict.fromkeys(self._tower.values(), 1)
        for side, tower in self._tower.items():
            self._limits[tower] = max(self._limits[tower], encoder.processors[side].length)
        self.shapes = [
            (tower, *shape) for tower, limit in self._limits.items() for shape in self._programs.shapes(limit)
        ]

        def encode(params: dict, tower: str, ids: Array, lengths: Array) -> Array:
            mask = jnp.arange(ids.shape[1])[None] < lengths[:, None]
            return cast(Array, encoder.converted(output, towers.encode(params, tower, Tokens(ids, mask))))

        self._encode = jax.jit(encode, static_argnums=1)
        self._compiled = dict.fromkeys(self._limits, frozenset[tuple[int, int]]())

    def warm_up(self, shape: tuple[str, int, int]) -> None:
        """Compiles and runs the program of one of `shapes`; from then on, all threads take it in calls."""
        tower, rows, width = shape
        side = next(side for side, used in self._tower.items() if used == tower)
        ids, lengths = np.zeros((rows, width), np.int32), np.ones(rows, np.int32)
        jax.block_until_ready(self._run(side, ids, lengths))
        self._compiled[tower] |= {(rows, width)}

    def __call__(self, side: str, texts: Sequence[str]) -> Encoded:
        """Encodes N >= 1 texts of one side, `question` or `answer`."""
        check_process()  # before the tokenizer's threads, which a forked process does not have
        table, tower = self._processors[side](texts), self._tower[side]
        results = []
        for indices, rows, width in self._programs.split(table.lengths, self._limits[tower], self._compiled[tower]):
            padded = np.resize(indices, rows)  # additional rows repeat texts
            lengths = table.lengths[padded].astype(np.int32)
            results.append((indices, self._run(side, table.pad(padded, width).ids, lengths)))
        embeddings: Any = None
        for indices, part in results:
            embeddings = store_batch(embeddings, len(texts), indices, part)
        embeddings = RaggedVectors.of(embeddings) if isinstance(embeddings, list) else embeddings
        return Encoded(embeddings, table.lengths, np.zeros(0, bool) if table.truncated is None else table.truncated)

    def _run(self, side: str, ids: Array | np.ndarray, lengths: np.ndarray) -> Array:
        check_process()
        with jax.default_device(self._device):
            return self._encode(self._params[side], self._tower[side], ids, lengths)
