"""Candidates that stay on the devices, for searches of a few questions at a time."""

import os

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.numerics import round_up
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.retrieval.best import Block, Tile, bring_in, merge, nothing_yet
from endx_jax.retrieval.search import (
    BLOCK,
    LARGE_TILE,
    TILES,
    Neighbours,
    check,
    fetched,
    fill_up,
    none_found,
    send,
    send_part,
)

# Of the memory that the devices have to spare, how much candidates may take.
SHARE = 0.25
# Scores that are worked out at a time.
SCORES = 1 << 19
# Best candidates kept a question: at least so many, and from there on powers of two.
FEWEST_KEPT = 16


class Resident:
    """The corpus of `search.top_k`, kept on the devices in blocks.

    A search does with each block what `top_k` does, without sending it. Few programs are compiled: blocks grow in
    steps of a quarter, questions are 1, 8 or a power of two from there, and what is kept of each is a power of two.

    Attributes:
      blocks: on the devices.
    """

    def __init__(self, candidates, scales, where: np.ndarray, before: "Resident | None" = None):
        """Places a corpus.

        Args:
          candidates: [N, E], as in `top_k`.
          scales: float32 [N], or None.
          where: bool [N], which candidates count.
          before: an earlier corpus that this one begins with; its full blocks are not sent again.
        """
        self._mesh: Mesh = before._mesh if before else make_mesh(MeshSettings(), jax.local_devices())
        self._tile = TILES.get(self._mesh.devices.flat[0].platform, LARGE_TILE)
        self._candidates, self._where, self._living = candidates, where, int(np.count_nonzero(where))
        self._tiles = _tiles(len(candidates), self._tile.candidates * self._mesh.size)
        self._size = self._tiles * self._tile.candidates * self._mesh.size
        kept = before.blocks if before and before._size == self._size else []
        if before and len(before) < len(candidates):
            kept = kept[: len(before) // self._size]  # what fills up the last is no longer nothing
        self.blocks: list[Block] = [
            block._replace(where=send_part(where[rows], self._size, self._mesh))
            for block, rows in zip(kept, self._rows(), strict=False)
        ]
        self.blocks += [send(rows, candidates, scales, where, self._mesh) for rows in self._rows()[len(kept) :]]

    def __len__(self) -> int:
        return len(self._candidates)

    def search(self, questions, k: int) -> Neighbours:
        """The same as `top_k(questions, candidates, k, scales=scales, where=where)`, but for the last bit."""
        questions = np.asarray(questions, np.float32)
        check(questions, self._candidates, None, None, k)
        k = min(k, self._living)
        if len(questions) == 0 or k == 0:
            return none_found(len(questions), k)
        step = self._tile.questions
        found = [self._search(questions[first : first + step], k) for first in range(0, len(questions), step)]
        return Neighbours(*map(np.concatenate, zip(*found, strict=True)))

    def _search(self, questions: np.ndarray, k: int) -> Neighbours:
        asked = len(questions)
        rows = 1 if asked == 1 else max(8, power_of_two(asked))
        kept = max(FEWEST_KEPT, power_of_two(k))
        tile = Tile(rows, self._tile.candidates * _together(self._tiles, rows, self._tile), self._tile.merged)
        best = nothing_yet(self._mesh.size, rows, kept, NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names)))
        questions = fill_up(questions, rows)[None]
        for block, part in zip(self.blocks, self._rows(), strict=True):
            best = bring_in(best, questions, block, np.int32(part.start), np.int32(len(self)), self._mesh, tile)
        return fetched(merge(best, self._mesh), asked, k)

    def _rows(self) -> list[slice]:
        """Which of the corpus each block holds."""
        return [slice(first, first + self._size) for first in range(0, len(self), self._size)]


def fits(size: int) -> bool:
    """Whether the devices of this process have memory to spare for a corpus of so many bytes.

    A CPU's is that of the machine, and is asked for rather than left: a memory map takes none that others need.
    """
    statistics = [device.memory_stats() for device in jax.local_devices()]
    if any(found is None for found in statistics):
        return size <= SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return size <= SHARE * sum(found["bytes_limit"] - found["bytes_in_use"] for found in statistics)


def _tiles(count: int, size: int) -> int:
    """Tiles of a block, each of `size` rows over all devices: up to a quarter more than are needed, up to `BLOCK`."""
    needed = min(-(-count // size), max(1, BLOCK // size))
    return round_up(needed, max(1, power_of_two(needed) // 8))


def _together(tiles: int, rows: int, tile: Tile) -> int:
    """How many of a block's tiles are scored at a time for so many questions: a divisor of them."""
    most = max(1, SCORES // (rows * tile.candidates))
    return next(number for number in range(min(most, tiles), 0, -1) if tiles % number == 0)


def power_of_two(number: int) -> int:
    """The smallest that is not below `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()
