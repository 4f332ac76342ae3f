"""Exact search: the k best candidates of every question by inner product, streamed over a corpus of any size."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.errors import EndxError
from endx_jax.numerics import round_up
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.parallel.sharding import place

Array = jax.Array


class Tile(NamedTuple):
    """The pieces in which a device works. All products of a search have one shape, and so one order of sums."""

    questions: int  # at most, that are scored together
    candidates: int  # that they are scored against at a time
    merged: int  # questions whose best are brought up to date at a time, of those for which a tile holds something new


# On a processor 2 MB of scores stay in the cache until they are compared, and in most tiles few questions find anything
# new. An accelerator has to be given more at a time (chosen by reasoning, not by measuring).
TILES = {"cpu": Tile(questions=1024, candidates=512, merged=16)}
LARGE_TILE = Tile(questions=1024, candidates=16384, merged=1024)

# Candidates sent to the devices at a time: 50 MB at a width of 384.
BLOCK = 32768
# What is sent as it is, and widened a tile at a time.
NARROW = (np.dtype(np.float16), np.dtype(jnp.bfloat16), np.dtype(np.int8))
MOST_CANDIDATES = np.iinfo(np.int32).max

WHOLE = PartitionSpec()


class Neighbours(NamedTuple):
    """The best candidates of Q questions.

    Attributes:
      scores: float32 [Q, k], descending.
      ids: int32 [Q, k], rows of the corpus; of equal scores the lower comes first.
    """

    scores: np.ndarray
    ids: np.ndarray


class _Best(NamedTuple):
    """What was found so far. Chunks of questions lead; those of all devices, one after the other, where it is split."""

    scores: Array  # float32 [chunks, rows, k], descending; -inf where fewer candidates were seen
    ids: Array  # int32 [chunks, rows, k]
    unordered: Array  # bool [chunks, rows, 1]: whether a score was nan


def top_k(questions, candidates, k: int, *, scales=None, mesh: Mesh | None = None, block: int = BLOCK) -> Neighbours:
    """Finds the k candidates with the highest inner products for every question.

    The corpus stays on the host. A block of it at a time is split over all devices of the mesh, the next on its way
    while one is searched. Each device keeps the k best of what it is sent, and these are merged once, at the end. So a
    device holds its parts of two blocks, the questions, one tile of scores and the best: nothing that grows with the
    corpus. On a CPU a block is not even copied if it begins on a 64-byte boundary, as every block of a memory-mapped
    `.npy` file does.

    Scores are float32 products at the highest precision of the device, the same for every `block`; another number of
    questions or another kind of device may change the last bit. The highest score of a question in a tile is compared
    with the k-th best so far, and the tile is looked into only where it is higher. So the time is little more than the
    matrix product's, unless the corpus is in such an order that later candidates keep beating earlier ones.

    Args:
      questions: [Q, E].
      candidates: [N, E], a NumPy array or memory map. float16, bfloat16 and int8 are sent as they are and widened on
        the device, a tile at a time.
      k: how many to find; all N if there are fewer.
      scales: float32 [N], what to multiply each candidate by, such as the scales of int8 codes; None: 1.
      mesh: devices to search on; None: all of this process. Each process of the mesh has to make the same call, and
        gets the whole result.
      block: candidates that are sent at a time, rounded up to whole tiles on every device.

    Raises:
      EndxError: the arrays do not fit together; k or block is below 1; a score is nan or one of the best infinite;
        there are 2^31 candidates or more.
    """
    questions = np.asarray(questions, np.float32)
    _check(questions, candidates, scales, k, block)
    asked, count = len(questions), len(candidates)
    k = min(k, count)
    if asked == 0 or count == 0:
        return Neighbours(np.zeros((asked, k), np.float32), np.zeros((asked, k), np.int32))
    mesh = make_mesh(MeshSettings(), jax.local_devices()) if mesh is None else mesh
    tile = TILES.get(mesh.devices.flat[0].platform, LARGE_TILE)
    best = _merge(_search(_in_chunks(questions, tile), candidates, scales, k, mesh, tile, block), mesh)
    found, ids, unordered = (np.asarray(part).reshape(-1, part.shape[-1])[:asked] for part in best)
    broken = unordered.any(axis=1) | ~np.isfinite(found).all(axis=1)
    if broken.any():
        raise EndxError(
            f"the scores of question {broken.argmax()} hold nan or infinity: check the embeddings of that question and "
            "of the candidates for nan, inf and values too large to multiply"
        )
    return Neighbours(found, ids)


def _check(questions, candidates, scales, k: int, block: int) -> None:
    if questions.ndim != 2 or candidates.ndim != 2 or questions.shape[1] != candidates.shape[1]:
        raise EndxError(
            f"question embeddings are {questions.shape} and candidate embeddings {candidates.shape}: both must be "
            "[rows, width], of the same model"
        )
    if scales is not None and scales.shape != (len(candidates),):
        raise EndxError(f"scales are {scales.shape} for {len(candidates)} candidates: there must be one for each")
    if k < 1 or block < 1:
        raise EndxError(f"a search needs a k and a block of at least 1: k {k}, block {block}")
    if len(candidates) > MOST_CANDIDATES:
        raise EndxError(
            f"{len(candidates)} candidates are more than ids of 32 bits can tell apart: search them in parts"
        )


def _in_chunks(questions: np.ndarray, tile: Tile) -> np.ndarray:
    """Questions [Q, E] in equal chunks [chunks, rows, E], filled up with zeros."""
    chunks = math.ceil(len(questions) / tile.questions)
    rows = round_up(math.ceil(len(questions) / chunks), 8)
    return _fill_up(questions, chunks * rows).reshape(chunks, rows, -1)


def _search(questions, candidates, scales, k: int, mesh: Mesh, tile: Tile, block: int) -> _Best:
    """The best that each device finds for questions [chunks, rows, E] among what it is sent."""
    split = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    count = len(candidates)
    block = round_up(min(block, count), tile.candidates * mesh.size)
    chunks, rows, _ = questions.shape
    best = _nothing_yet(chunks * mesh.size, rows, k, split)
    questions = place(questions, NamedSharding(mesh, WHOLE))
    for start in range(0, count, block):
        part = _widened(np.asarray(candidates[start : start + block]))
        sent = place(_fill_up(part, block), split)
        factors = None if scales is None else place(_fill_up(scales[start : start + block], block), split)
        jax.block_until_ready(best)  # the block before is done with, so that there are never three
        best = _search_block(best, questions, sent, factors, np.int32(start), np.int32(count), mesh, tile)
    return best


def _widened(part: np.ndarray) -> np.ndarray:
    return part if part.dtype in NARROW else part.astype(np.float32, copy=False)


def _fill_up(rows: np.ndarray, size: int) -> np.ndarray:
    """The rows and as many of zeros as are missing; the very same array where none is."""
    missing = size - len(rows)
    return np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1)) if missing else rows


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _nothing_yet(chunks: int, rows: int, k: int, split: NamedSharding) -> _Best:
    best = _Best(
        scores=jnp.full((chunks, rows, k), -jnp.inf, jnp.float32),
        ids=jnp.full((chunks, rows, k), MOST_CANDIDATES, jnp.int32),
        unordered=jnp.zeros((chunks, rows, 1), bool),
    )
    return jax.lax.with_sharding_constraint(best, split)


@functools.partial(jax.jit, static_argnames=("mesh", "tile"))
def _search_block(best: _Best, questions, block, factors, start, count, mesh: Mesh, tile: Tile) -> _Best:
    """Brings in a block [b, E] that begins with candidate `start` of `count`."""

    def on_device(best, questions, part, factors, start, count):
        start = start + jax.lax.axis_index(mesh.axis_names) * len(part)
        tiles = (jnp.clip(count - start, 0, len(part)) + tile.candidates - 1) // tile.candidates

        def search(chunk):
            rows, best = chunk

            def bring_in(i, best):
                own = jax.lax.dynamic_slice_in_dim(part, i * tile.candidates, tile.candidates).astype(jnp.float32)
                if factors is not None:
                    own *= jax.lax.dynamic_slice_in_dim(factors, i * tile.candidates, tile.candidates)[:, None]
                return _search_tile(best, rows, own, start + i * tile.candidates, count, tile.merged)

            return jax.lax.fori_loop(0, tiles, bring_in, best)

        return jax.lax.map(search, (questions, best))

    split = PartitionSpec(mesh.axis_names)
    in_specs = (split, WHOLE, split, split, WHOLE, WHOLE)
    shared = jax.shard_map(on_device, mesh=mesh, in_specs=in_specs, out_specs=split, check_vma=False)
    return shared(best, questions, block, factors, start, count)


def _search_tile(best: _Best, questions, candidates, first, count, merged: int) -> _Best:
    """Brings in candidates [c, E], the ids of which begin with `first`, for one chunk of questions [rows, E]."""
    width = (((1,), (1,)), ((), ()))
    scores = jax.lax.dot_general(questions, candidates, width, precision=jax.lax.Precision.HIGHEST)
    highest = scores.max(axis=1)
    # Ids ascend: what only equals the last of the best comes after it.
    newer = highest > best.scores[:, -1]
    past_end = first + jnp.arange(scores.shape[1], dtype=jnp.int32) >= count
    found = _merge_rows(best, scores, newer, first, past_end, min(merged, len(questions)))
    return found._replace(unordered=best.unordered | jnp.isnan(highest)[:, None])


def _merge_rows(best: _Best, scores, newer, first, past_end, step: int) -> _Best:
    """Merges the rows of scores [rows, c] that hold something `newer`, `step` of them at a time."""
    k = best.scores.shape[1]

    def merge(state):
        newer, best = state
        holds, some = jax.lax.top_k(newer, step)  # the last step is filled up with rows that have nothing to merge
        new = jnp.where((holds[:, None] > 0) & ~past_end[None], scores[some], -jnp.inf)
        new = jnp.where(new == 0, 0, new)  # top_k would have -0 below 0
        found, places = jax.lax.top_k(jnp.concatenate([best.scores[some], new], axis=1), k)
        kept = jnp.take_along_axis(best.ids[some], jnp.minimum(places, k - 1), axis=1)
        ids = jnp.where(places < k, kept, first + places - k)
        best = best._replace(scores=best.scores.at[some].set(found), ids=best.ids.at[some].set(ids))
        return newer.at[some].set(0), best

    return jax.lax.while_loop(lambda state: state[0].any(), merge, (newer.astype(jnp.float32), best))[1]


@functools.partial(jax.jit, static_argnames="mesh")
def _merge(best: _Best, mesh: Mesh) -> _Best:
    """The best of all devices, on each of them."""
    k = best.scores.shape[-1]

    def on_device(best):
        scores, ids, unordered = jax.lax.all_gather(best, mesh.axis_names, axis=2, tiled=True)
        negative, ids = jax.lax.sort((-scores, ids), num_keys=2)
        return _Best(-negative[..., :k], ids[..., :k], unordered)

    split = PartitionSpec(mesh.axis_names)
    return jax.shard_map(on_device, mesh=mesh, in_specs=(split,), out_specs=WHOLE, check_vma=False)(best)
