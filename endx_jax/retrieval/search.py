"""Exact search: the k best candidates of every question by inner product, over a corpus of any size."""

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.errors import EndxError
from endx_jax.models.sharding_hints import platform
from endx_jax.numerics import round_up
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import place

Array = jax.Array

# Id of an empty place in a result.
NO_CANDIDATE = np.iinfo(np.int32).max
WHOLE = PartitionSpec()


class Tile(NamedTuple):
    """Sizes of the products on a device. All products of a search have one shape, hence one order of summation."""

    questions: int  # scored together, at most
    candidates: int  # scored at a time
    merged: int  # questions merged at a time, among those for which a tile holds a new best candidate


class Block(NamedTuple):
    """Block of candidates that is sent at once; each device of the mesh holds its own rows.

    Attributes:
      embeddings: [b, E], of any numeric dtype.
      scales: float32 [b], factor of each row; None: 1.
      where: bool [b], true for rows that count; None: all.
    """

    embeddings: Array
    scales: Array | None
    where: Array | None


class Best(NamedTuple):
    """Best candidates so far. The first axis holds chunks of questions; if sharded, those of all devices in turn."""

    scores: Array  # float32 [chunks, rows, k], descending; -inf where fewer candidates were seen
    ids: Array  # int32 [chunks, rows, k]
    unordered: Array  # bool [chunks, rows, 1], true if a score was nan


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def empty_best(chunks: int, rows: int, k: int, split: NamedSharding) -> Best:
    """Returns the initial `Best`, without candidates."""
    best = Best(
        scores=jnp.full((chunks, rows, k), -jnp.inf, jnp.float32),
        ids=jnp.full((chunks, rows, k), NO_CANDIDATE, jnp.int32),
        unordered=jnp.zeros((chunks, rows, 1), bool),
    )
    return jax.lax.with_sharding_constraint(best, split)


@functools.partial(jax.jit, static_argnames=("mesh", "tile"))
def merge_block(best: Best, questions, block: Block, start, count, mesh: Mesh, tile: Tile) -> Best:
    """Merges a block, whose first row is candidate `start` of `count`, into the best of questions [chunks, rows, E]."""

    def on_device(best, questions, block, start, count):
        size = len(block.embeddings)
        start = start + jax.lax.axis_index(mesh.axis_names) * size
        tiles = (jnp.clip(count - start, 0, size) + tile.candidates - 1) // tile.candidates

        def search(chunk):
            rows, best = chunk

            def merge_tile(best, scores, where, first):
                return _merge_tile(best, scores, where, start + first, count, tile.merged)

            return scan_tiles(best, rows, block, tiles, tile.candidates, merge_tile)

        return jax.lax.map(search, (questions, best))

    split = PartitionSpec(mesh.axis_names)
    in_specs = (split, WHOLE, split, WHOLE, WHOLE)
    shared = jax.shard_map(on_device, mesh=mesh, in_specs=in_specs, out_specs=split, check_vma=False)
    return shared(best, questions, block, start, count)


def scan_tiles(carry, questions: Array, block: Block, tiles, size: int, update: Callable):
    """Scores questions against the first `tiles` tiles of a block and folds the scores into `carry`.

    Args:
      carry: initial value, a tree of arrays.
      questions: float32 [rows, E].
      block: candidates on this device.
      tiles: number of tiles.
      size: candidates per tile.
      update: `(carry, scores, where, first) -> carry` for each tile: scores [rows, size], the tile's part of
        `block.where`, and the row of the block that the tile begins with.
    """

    def step(i, carry):
        tile = jax.tree.map(lambda part: jax.lax.dynamic_slice_in_dim(part, i * size, size), block)
        return update(carry, tile_scores(questions, tile), tile.where, i * size)

    return jax.lax.fori_loop(0, tiles, step, carry)


def tile_scores(questions: Array, tile: Block) -> Array:
    """Returns float32 inner products [rows, n] of questions [rows, E] and n candidates, at the highest precision."""
    embeddings = tile.embeddings.astype(jnp.float32)
    if tile.scales is not None:
        embeddings *= tile.scales[:, None]
    return jax.lax.dot_general(questions, embeddings, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST)


def _merge_tile(best: Best, scores: Array, where: Array | None, first, count, merged: int) -> Best:
    """Merges scores [rows, n] of candidates whose ids begin with `first` into the best of one chunk of questions."""
    if where is not None:
        scores = jnp.where(where[None], scores, -jnp.inf)
    highest = scores.max(axis=1)
    # Ids ascend, so a candidate that ties with the last of the best ranks below it.
    newer = highest > best.scores[:, -1]
    past_end = first + jnp.arange(scores.shape[1], dtype=jnp.int32) >= count
    found = _merge_rows(best, scores, newer, first, past_end, min(merged, len(scores)))
    return found._replace(unordered=best.unordered | jnp.isnan(highest)[:, None])


def _merge_rows(best: Best, scores, newer, first, past_end, step: int) -> Best:
    """Merges the rows of scores [rows, c] that are marked `newer`, `step` of them at a time."""
    k = best.scores.shape[1]

    def merge(state):
        newer, best = state
        holds, some = jax.lax.top_k(newer, step)  # the last step includes rows with nothing to merge
        new = jnp.where((holds[:, None] > 0) & ~past_end[None], scores[some], -jnp.inf)
        new = jnp.where(new == 0, 0, new)  # top_k ranks -0 below 0
        found, places = jax.lax.top_k(jnp.concatenate([best.scores[some], new], axis=1), k)
        kept = jnp.take_along_axis(best.ids[some], jnp.minimum(places, k - 1), axis=1)
        ids = jnp.where(places < k, kept, first + places - k)
        best = best._replace(scores=best.scores.at[some].set(found), ids=best.ids.at[some].set(ids))
        return newer.at[some].set(0), best

    return jax.lax.while_loop(lambda state: state[0].any(), merge, (newer.astype(jnp.float32), best))[1]


@functools.partial(jax.jit, static_argnames="mesh")
def merge_devices(best: Best, mesh: Mesh) -> Best:
    """Merges the best of all devices and replicates the result."""
    k = best.scores.shape[-1]

    def on_device(best):
        scores, ids, unordered = jax.lax.all_gather(best, mesh.axis_names, axis=2, tiled=True)
        negative, ids = jax.lax.sort((-scores, ids), num_keys=2)
        return Best(-negative[..., :k], ids[..., :k], unordered)

    split = PartitionSpec(mesh.axis_names)
    return jax.shard_map(on_device, mesh=mesh, in_specs=(split,), out_specs=WHOLE, check_vma=False)(best)


# On a CPU, 2 MB of scores stay in the cache until they are compared, and most tiles improve few questions. Accelerators
# need larger products; their tile is not measured.
TILES = {"cpu": Tile(questions=1024, candidates=512, merged=16)}
LARGE_TILE = Tile(questions=1024, candidates=16384, merged=1024)

# Candidates sent to the devices at a time: 50 MB at a width of 384.
BLOCK = 32768
# Dtypes that are sent as they are and widened on the device, a tile at a time.
NARROW = (np.dtype(np.float16), np.dtype(jnp.bfloat16), np.dtype(np.int8))


class Neighbours(NamedTuple):
    """The best candidates of Q questions.

    Attributes:
      scores: float32 [Q, k], descending.
      rows: int32 [Q, k], of the corpus; ties are ordered by row.
    """

    scores: np.ndarray
    rows: np.ndarray


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
      block: candidates that are sent at a time, rounded up to whole tiles on every device.

    Raises:
      EndxError: the arrays do not fit together; k or block is below 1; a score is nan or one of the best infinite;
        there are 2^31 candidates or more.
    """
    questions = np.asarray(questions, np.float32)
    check(questions, candidates, scales, where, k, block)
    asked, count = len(questions), len(candidates)
    k = min(k, count if where is None else int(np.count_nonzero(where)))
    if asked == 0 or k == 0:
        return no_neighbours(asked, k)
    mesh = make_mesh(MeshSettings(), jax.local_devices()) if mesh is None else mesh
    tile = TILES.get(platform(mesh), LARGE_TILE)
    best = merge_devices(_search(_in_chunks(questions, tile), candidates, scales, where, k, mesh, tile, block), mesh)
    return to_neighbours(best, asked, k)


def no_neighbours(asked: int, k: int) -> Neighbours:
    """Returns the result for no questions, or no candidates."""
    return Neighbours(np.zeros((asked, k), np.float32), np.zeros((asked, k), np.int32))


def to_neighbours(best: Best, asked: int, k: int) -> Neighbours:
    """Fetches the k best of `asked` questions after `merge_devices`.

    Raises:
      EndxError: a score is nan or infinite.
    """
    found, rows, unordered = (part.reshape(-1, part.shape[-1])[:asked, :k] for part in jax.device_get(best))
    broken = unordered.any(axis=1) | ~np.isfinite(found).all(axis=1)
    if broken.any():
        raise EndxError(
            f"the scores of question {broken.argmax()} contain nan or infinity: check its embedding and those "
            "of the candidates for nan, inf and very large values"
        )
    return Neighbours(found, rows)


def check(questions, candidates, scales, where, k: int, block: int = BLOCK) -> None:
    """Raises EndxError where the arguments of `top_k` do not fit together."""
    if questions.ndim != 2 or candidates.ndim != 2 or questions.shape[1] != candidates.shape[1]:
        raise EndxError(
            f"question embeddings are {questions.shape} and candidate embeddings {candidates.shape}: both must be "
            "[rows, width], of the same model"
        )
    for name, column in (("scales", scales), ("where", where)):
        if column is not None and column.shape != (len(candidates),):
            raise EndxError(f"{name} is {column.shape} for {len(candidates)} candidates: it needs one entry for each")
    if k < 1 or block < 1:
        raise EndxError(f"a search needs a k and a block of at least 1: k {k}, block {block}")
    if len(candidates) > NO_CANDIDATE:
        raise EndxError(f"{len(candidates)} candidates exceed 32-bit ids: search them in parts")


def _in_chunks(questions: np.ndarray, tile: Tile) -> np.ndarray:
    """Splits questions [Q, E] into equal chunks [chunks, rows, E], padded with zeros."""
    chunks = math.ceil(len(questions) / tile.questions)
    rows = round_up(math.ceil(len(questions) / chunks), 8)
    return fill_up(questions, chunks * rows).reshape(chunks, rows, -1)


def _search(questions, candidates, scales, where, k: int, mesh: Mesh, tile: Tile, block: int) -> Best:
    """Returns the best of each device for questions [chunks, rows, E]."""
    count = len(candidates)
    block = round_up(min(block, count), tile.candidates * mesh.size)
    chunks, rows, _ = questions.shape
    best = empty_best(chunks * mesh.size, rows, k, NamedSharding(mesh, PartitionSpec(mesh.axis_names)))
    questions = place(questions, NamedSharding(mesh, WHOLE))
    for start in range(0, count, block):
        sent = send(slice(start, start + block), candidates, scales, where, mesh)
        jax.block_until_ready(best)  # the previous block is finished, so at most two are on the device
        best = merge_block(best, questions, sent, np.int32(start), np.int32(count), mesh, tile)
    return best


def send(rows: slice, candidates, scales, where, mesh: Mesh) -> Block:
    """Sends `rows` of the corpus to the devices."""
    embeddings = np.asarray(candidates[rows])
    if embeddings.dtype not in NARROW:
        embeddings = embeddings.astype(np.float32, copy=False)
    size = rows.stop - rows.start
    columns = (None if column is None else send_part(column[rows], size, mesh) for column in (scales, where))
    return Block(send_part(embeddings, size, mesh), *columns)


def send_part(part: np.ndarray, size: int, mesh: Mesh) -> jax.Array:
    """Splits rows over the devices, padded with zeros to `size` rows."""
    return place(fill_up(part, size), NamedSharding(mesh, PartitionSpec(mesh.axis_names)))


def fill_up(rows: np.ndarray, size: int) -> np.ndarray:
    """Pads rows with zeros to `size`; returns the same array if none is missing."""
    missing = size - len(rows)
    return np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1)) if missing else rows


# Share of the devices' free memory that resident candidates may take.
SHARE = 0.25
# Maximum scores computed at a time.
SCORES = 1 << 19
# Smallest number of best candidates kept per question; larger ones are powers of two.
FEWEST_KEPT = 16


class Resident:
    """Corpus of `top_k` that stays on the devices, in blocks, for searches of a few questions at a time.

    A search processes each block as `top_k` does, without sending it. Few programs are compiled: block sizes grow in
    steps of a quarter, numbers of questions are 1 or powers of two from 8, and numbers of best candidates are powers
    of two.

    Attributes:
      blocks: candidates on the devices.
    """

    def __init__(self, candidates, scales, where: np.ndarray, before: "Resident | None" = None):
        """Places a corpus.

        Args:
          candidates: [N, E], as in `top_k`.
          scales: float32 [N], or None.
          where: bool [N], true for candidates that count.
          before: an earlier corpus, the beginning of this one; its full blocks are not sent again.
        """
        self._mesh: Mesh = before._mesh if before else make_mesh(MeshSettings(), jax.local_devices())
        self._tile = TILES.get(platform(self._mesh), LARGE_TILE)
        self._candidates, self._where, self._living = candidates, where, int(np.count_nonzero(where))
        self._tiles = _tiles(len(candidates), self._tile.candidates * self._mesh.size)
        self._size = self._tiles * self._tile.candidates * self._mesh.size
        kept = before.blocks if before and before._size == self._size else []
        if before and len(before) < len(candidates):
            kept = kept[: len(before) // self._size]  # the padding of the last one is now used
        self.blocks: list[Block] = [
            block._replace(where=send_part(where[rows], self._size, self._mesh))
            for block, rows in zip(kept, self._rows(), strict=False)
        ]
        self.blocks += [send(rows, candidates, scales, where, self._mesh) for rows in self._rows()[len(kept) :]]

    def __len__(self) -> int:
        return len(self._candidates)

    def search(self, questions, k: int, where: np.ndarray | None = None) -> Neighbours:
        """Returns `top_k(questions, candidates, k, scales=scales, where=where)`, up to the last bit of scores.

        `where`, bool [N], replaces that of the corpus for this search.
        """
        questions = np.asarray(questions, np.float32)
        check(questions, self._candidates, None, where, k)
        k = min(k, self._living if where is None else int(np.count_nonzero(where)))
        if len(questions) == 0 or k == 0:
            return no_neighbours(len(questions), k)
        step = self._tile.questions
        blocks = self.blocks
        if where is not None:
            parts = [send_part(where[rows], self._size, self._mesh) for rows in self._rows()]
            blocks = [block._replace(where=part) for block, part in zip(blocks, parts, strict=True)]
        found = [self._search(questions[first : first + step], k, blocks) for first in range(0, len(questions), step)]
        return Neighbours(*map(np.concatenate, zip(*found, strict=True)))

    def _search(self, questions: np.ndarray, k: int, blocks: Sequence[Block]) -> Neighbours:
        asked = len(questions)
        rows = 1 if asked == 1 else max(8, power_of_two(asked))
        kept = max(FEWEST_KEPT, power_of_two(k))
        tile = Tile(rows, self._tile.candidates * _together(self._tiles, rows, self._tile), self._tile.merged)
        best = empty_best(self._mesh.size, rows, kept, NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names)))
        questions = fill_up(questions, rows)[None]
        for block, part in zip(blocks, self._rows(), strict=True):
            best = merge_block(best, questions, block, np.int32(part.start), np.int32(len(self)), self._mesh, tile)
        return to_neighbours(merge_devices(best, self._mesh), asked, k)

    def _rows(self) -> list[slice]:
        """Returns the rows of the corpus in each block."""
        return [slice(first, first + self._size) for first in range(0, len(self), self._size)]


def fits(size: int) -> bool:
    """Returns true if the devices of this process have free memory for a corpus of `size` bytes.

    For a CPU the total memory of the machine counts: pages of a memory map can be reclaimed.
    """
    statistics = [device.memory_stats() for device in jax.local_devices()]
    if any(found is None for found in statistics):
        return size <= SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return size <= SHARE * sum(found["bytes_limit"] - found["bytes_in_use"] for found in statistics)


def _tiles(count: int, size: int) -> int:
    """Returns the tiles per block, each of `size` rows over all devices: at most a quarter more than needed."""
    needed = min(-(-count // size), max(1, BLOCK // size))
    return round_up(needed, max(1, power_of_two(needed) // 8))


def _together(tiles: int, rows: int, tile: Tile) -> int:
    """Returns the number of tiles scored at a time for `rows` questions, a divisor of `tiles`."""
    most = max(1, SCORES // (rows * tile.candidates))
    return next(number for number in range(min(most, tiles), 0, -1) if tiles % number == 0)


def power_of_two(number: int) -> int:
    """Returns the smallest power of two that is at least `number`, which is at least 1."""
    return 1 << (number - 1).bit_length()
