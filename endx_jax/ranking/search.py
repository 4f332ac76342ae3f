"""Exact search: the k best candidates of every question by inner product, over a corpus of any size."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.errors import EndxError
from endx_jax.models.sharding_hints import platform
from endx_jax.numerics import power_of_two, round_up, rung
from endx_jax.parallel.memory import host_memory
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import put
from endx_jax.ranking.tiles import (
    LARGE_TILE,
    NO_CANDIDATE,
    TILES,
    WHOLE,
    Block,
    empty_best,
    merge_block,
    merge_devices,
    score_block,
)

Array = jax.Array

# Questions of each product of `Corpus.scores`. The kernel of a product, and with it the order of summation, depends on
# the shape, so that one shape gives the same bits for every block of questions. It is the smallest block of `evaluate`.
TOGETHER = 16
# Candidates sent to the devices at a time: 50 MB at a width of 384.
BLOCK = 32768
# Dtypes that are sent as they are and widened on the device, a tile at a time.
NARROW = (np.dtype(np.float16), np.dtype(jnp.bfloat16), np.dtype(np.int8), np.dtype(np.uint32))


class Neighbours(NamedTuple):
    """The best candidates of Q questions.

    Attributes:
      scores: float32 [Q, k], descending.
      rows: int32 [Q, k], of the corpus; ties are ordered by row.
    """

    scores: np.ndarray
    rows: np.ndarray

    def rankings(self) -> list[list[tuple[int, float]]]:
        """Returns pairs of row and score for each question, best first."""
        pairs = zip(self.rows.tolist(), self.scores.tolist(), strict=True)
        return [[*zip(*both, strict=True)] for both in pairs]


def top_k(
    questions, candidates, k: int, *, scales=None, where=None, mesh: Mesh | None = None, block: int = BLOCK
) -> Neighbours:
    """Finds the k candidates with the highest inner products for every question.

    The corpus stays on the host. It is sent block by block, each split over all devices of the mesh; the next block is
    sent while one is searched. Each device keeps the k best of its rows, which are merged once at the end. The memory
    of a device does not grow with the corpus: it holds its parts of two blocks, the questions, one tile of scores and
    the best. On a CPU, blocks that begin on a 64-byte boundary are not copied; those of a memory-mapped `.npy` file do.

    Scores are float32 products at the highest precision of the device, the same for every `block`; another number of
    questions or another kind of device may change the last bit. The highest score of a question in a tile is compared
    with the k-th best so far, and the tile is merged only for questions where it is higher. The time is little more
    than that of the matrix product, unless later candidates of the corpus keep scoring higher than earlier ones.

    Args:
      questions: [Q, E].
      candidates: [N, E], a NumPy array or memory map. float16, bfloat16 and int8 are sent as they are and widened on
        the device, a tile at a time.
      k: number of candidates to find; all of them if there are fewer.
      where: bool [N], true for candidates to search; None: all.
      scales: float32 [N], factor of each candidate, such as the scales of int8 codes; None: 1.
      mesh: devices to search on; None: all of this process. Every process of the mesh must make the same call, and
        gets the whole result.
      block: candidates that are sent at a time, in whole tiles on every device.

    Raises:
      EndxError: the arrays do not fit together; k or block is below 1; a score is nan or one of the best infinite;
        there are 2^31 candidates or more.

    Examples:
      >>> from endx_jax.ranking.search import top_k
      >>> found = top_k(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0], [0.75, 0.25], [0.5, 0.5]]), k=2)
      >>> print(found.rows, found.scores)
      [[1 2]] [[0.75 0.5 ]]
    """
    if block < 1:
        raise EndxError(f"a search needs a block of at least 1 candidate: block {block}")
    return Corpus(candidates, scales, where, resident=False, mesh=mesh, block=block).search(questions, k)


def check_finite(scores: np.ndarray) -> None:
    """Raises EndxError if one of the scores [Q, k] is nan or infinite."""
    broken = ~np.isfinite(scores).all(axis=1)
    if broken.any():
        wrong = f"the scores of question {broken.argmax()} contain nan or infinity"
        raise EndxError(f"{wrong}: check its embedding and those of the candidates")


def best_of_groups(scores: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Returns the highest of scores [b, K] in each of `count` ascending groups, [b, count]; -inf for empty groups."""
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    best = np.full((len(scores), count), -np.inf, np.float32)
    if len(starts):
        best[:, groups[starts]] = np.maximum.reduceat(np.asarray(scores), starts, axis=1)
    return best


def no_neighbours(questions: int, k: int) -> Neighbours:
    """Returns the result for no questions, or no candidates."""
    return Neighbours(np.zeros((questions, k), np.float32), np.zeros((questions, k), np.int32))


# Share of the devices' free memory that resident candidates may take.
SHARE = 0.25
# Maximum scores computed at a time.
SCORES = 1 << 19
# Smallest number of best candidates that a resident corpus keeps per question; larger ones are powers of two.
FEWEST_KEPT = 16


class Corpus:
    """Candidates in blocks, which stay on the devices or are sent anew for each search.

    Few programs are compiled for a resident corpus: numbers of questions are 1 or powers of two from 8, and numbers of
    best candidates are powers of two. Sizes of blocks grow in steps of a quarter.
    """

    def __init__(
        self,
        candidates,
        scales=None,
        where: np.ndarray | None = None,
        *,
        resident: bool = True,
        mesh: Mesh | None = None,
        block: int = BLOCK,
        before: "Corpus | None" = None,
    ):
        """Sends a resident corpus to the devices.

        Args:
          candidates: [N, E], as in `top_k`; or uint32 [N, W], bits of `numerics.signs`, for `sign_products`.
          scales: float32 [N], or None.
          where: bool [N], true for candidates that count; None: all.
          resident: keep all blocks on the devices.
          mesh: devices; None: all of this process.
          block: largest number of candidates in a block.
          before: an earlier corpus, the beginning of this one; its full blocks are not sent again.

        Raises:
          EndxError: the arrays do not fit together, or there are 2^31 candidates or more.
        """
        for name, column in (("scales", scales), ("where", where)):
            if column is not None and column.shape != (len(candidates),):
                raise EndxError(f"{name} is {column.shape} for {len(candidates)} candidates: give one for each")
        self._mesh: Mesh = before._mesh if before else mesh or make_mesh(MeshSettings(), jax.local_devices())
        self._tile = TILES.get(platform(self._mesh), LARGE_TILE)
        self._candidates, self._scales, self._where = candidates, scales, where
        unit = self._tile.candidates * self._mesh.size
        self._tiles = _tiles(len(candidates), unit, block)
        self._size = self._tiles * unit
        if len(candidates) + self._size > NO_CANDIDATE:  # padding has ids too
            raise EndxError(f"{len(candidates)} candidates exceed 32-bit ids: search them in parts")
        self._resident: list[Block] | None = None
        if resident:
            reused = before._resident or [] if before and before._size == self._size else []
            if before and len(before) < len(self):
                reused = reused[: len(before) // self._size]  # the padding of the last one is now used
            self._resident = [
                old._replace(where=self._send(where, rows)) for old, rows in zip(reused, self._rows(), strict=False)
            ]
            self._resident += [self._block(rows, where) for rows in self._rows()[len(reused) :]]

    def __len__(self) -> int:
        return len(self._candidates)

    def search(self, questions, k: int, where: np.ndarray | None = None) -> Neighbours:
        """Returns `top_k` of the corpus, up to the last bit of scores; `where`, bool [N], replaces that of the corpus.

        Raises:
          EndxError: the questions are of another width, k is below 1, or a score is nan or one of the best infinite.
        """
        questions = np.asarray(questions, np.float32)
        where = self._where if where is None else where
        self._check(questions)
        if k < 1:
            raise EndxError(f"a search needs a k of at least 1: k {k}")
        k = min(k, len(self) if where is None else int(np.count_nonzero(where)))
        if len(questions) == 0 or k == 0:
            return no_neighbours(len(questions), k)
        step = len(questions) if self._resident is None else self._tile.questions
        parts = [self._search(questions[first : first + step], k, where) for first in range(0, len(questions), step)]
        scores, rows, has_nan = (np.concatenate(part) for part in zip(*parts, strict=True))
        check_finite(np.where(has_nan.any(axis=1, keepdims=True), np.nan, scores))
        return Neighbours(scores, rows)

    def _search(self, questions: np.ndarray, k: int, where: np.ndarray | None) -> list[np.ndarray]:
        """Returns the parts of `Best` [Q, k] for questions [Q, E]."""
        count, mesh, tile = len(questions), self._mesh, self._tile
        if self._resident is None:
            chunks, width = math.ceil(count / tile.questions), k
            rows = round_up(math.ceil(count / chunks), 8)
        else:
            chunks, width = 1, max(FEWEST_KEPT, power_of_two(k))
            rows = 1 if count == 1 else max(8, power_of_two(count))
            most = min(SCORES // rows, tile.bytes // (4 * self._candidates.shape[1])) // tile.candidates
            tile = tile._replace(candidates=tile.candidates * _largest_divisor(self._tiles, most))
        best = empty_best(chunks * mesh.size, rows, width, NamedSharding(mesh, PartitionSpec(mesh.axis_names)))
        questions = fill_up(questions, chunks * rows).reshape(chunks, rows, -1)
        questions = put(questions, NamedSharding(mesh, WHOLE))
        for start, block in self._blocks(where):
            if self._resident is None:
                jax.block_until_ready(best)  # the previous block is finished, so at most two are on the device
            best = merge_block(best, questions, block, np.int32(start), np.int32(len(self)), mesh, tile)
        best = jax.device_get(merge_devices(best, mesh))
        return [part.reshape(-1, part.shape[-1])[:count, :k] for part in best]

    def scores(self, questions) -> Callable[[int, int], Array]:
        """Returns the scorer of questions [Q, E] for `evaluate`; the scores of candidates that do not count are -inf.

        Products are float32 at the highest precision of the device, with equal bits for every block of questions and
        for equal candidates, so that ties are exact. Another kind of device may change the last bit.

        Raises:
          EndxError: the questions are of another width.
        """
        questions = np.asarray(questions, np.float32)
        self._check(questions)

        def scores(start: int, stop: int) -> Array:
            rows = fill_up(questions[start:stop], round_up(stop - start, TOGETHER))
            rows = put(rows.reshape(-1, TOGETHER, rows.shape[1]), NamedSharding(self._mesh, WHOLE))
            parts: list[Array] = []
            for _, block in self._blocks(self._where):
                jax.block_until_ready(parts)
                parts.append(score_block(rows, block, self._mesh))
            return jnp.concatenate(parts, axis=1)[: stop - start, : len(self)]

        return scores

    def _check(self, questions: np.ndarray) -> None:
        per_column = 32 if self._candidates.dtype == np.uint32 else 1
        widths = [-(-size // per_column) for size in questions.shape[1:]]
        if questions.ndim != 2 or self._candidates.ndim != 2 or widths != [self._candidates.shape[1]]:
            given = f"question embeddings are {questions.shape} and candidate embeddings {self._candidates.shape}"
            raise EndxError(f"{given}: both must be [rows, width], of the same model")

    def _blocks(self, where: np.ndarray | None) -> Iterator[tuple[int, Block]]:
        """Yields all blocks and their first candidates."""
        for number, rows in enumerate(self._rows()):
            if self._resident is None:
                block = self._block(rows, where)
            else:
                block = self._resident[number]
                if where is not self._where:
                    block = block._replace(where=self._send(where, rows))
            yield rows.start, block

    def _rows(self) -> list[slice]:
        """Returns the rows of the corpus in each block."""
        return [slice(first, first + self._size) for first in range(0, len(self), self._size)]

    def _block(self, rows: slice, where: np.ndarray | None) -> Block:
        """Sends a block to the devices."""
        embeddings = np.asarray(self._candidates[rows])
        if embeddings.dtype not in NARROW:
            embeddings = embeddings.astype(np.float32, copy=False)
        return Block(self._send(embeddings), self._send(self._scales, rows), self._send(where, rows))

    def _send(self, column, rows: slice = slice(None)):
        """Splits rows of a column over the devices, padded with zeros to the size of a block; None remains None."""
        if column is None:
            return None
        split = NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names))
        return put(fill_up(column[rows], self._size), split)


def fill_up(rows: np.ndarray, size: int) -> np.ndarray:
    """Pads rows with zeros to `size`; returns the same array if none is missing."""
    missing = size - len(rows)
    return np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1)) if missing else rows


def fits(size: int, devices: Sequence[jax.Device] = ()) -> bool:
    """Returns true if the free memory of devices, by default of all local ones, holds a corpus of `size` bytes.

    For a CPU the total memory of the machine or container counts: pages of a memory map can be reclaimed.
    """
    statistics = [device.memory_stats() for device in devices or jax.local_devices()]
    if any(memory is None for memory in statistics):
        return size <= SHARE * host_memory()[0]
    return size <= SHARE * sum(memory["bytes_limit"] - memory["bytes_in_use"] for memory in statistics)


def _tiles(count: int, size: int, block: int) -> int:
    """Returns the tiles per block, each of `size` rows over all devices: at most a quarter more than needed."""
    return rung(max(1, min(-(-count // size), block // size)), 8)


def _largest_divisor(number: int, most: int) -> int:
    """Returns the largest divisor of a number up to `most`, or 1."""
    return next((divisor for divisor in range(min(most, number), 0, -1) if number % divisor == 0), 1)
