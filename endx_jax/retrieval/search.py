"""Exact search: the k best candidates of every question by inner product, streamed over a corpus of any size."""

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
from endx_jax.retrieval.best import NOBODY, WHOLE, Best, Block, Tile, bring_in, merge, nothing_yet

# On a processor 2 MB of scores stay in the cache until they are compared, and in most tiles few questions find anything
# new. An accelerator has to be given more at a time (chosen by reasoning, not by measuring).
TILES = {"cpu": Tile(questions=1024, candidates=512, merged=16)}
LARGE_TILE = Tile(questions=1024, candidates=16384, merged=1024)

# Candidates sent to the devices at a time: 50 MB at a width of 384.
BLOCK = 32768
# What is sent as it is, and widened a tile at a time.
NARROW = (np.dtype(np.float16), np.dtype(jnp.bfloat16), np.dtype(np.int8))


class Neighbours(NamedTuple):
    """The best candidates of Q questions.

    Attributes:
      scores: float32 [Q, k], descending.
      rows: int32 [Q, k], of the corpus; of equal scores the lower comes first.
    """

    scores: np.ndarray
    rows: np.ndarray


def top_k(
    questions, candidates, k: int, *, scales=None, where=None, mesh: Mesh | None = None, block: int = BLOCK
) -> Neighbours:
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
      k: how many to find; all that count if there are fewer.
      where: bool [N], which candidates count: what is found is what would be found without the others; None: all.
      scales: float32 [N], what to multiply each candidate by, such as the scales of int8 codes; None: 1.
      mesh: devices to search on; None: all of this process. Each process of the mesh has to make the same call, and
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
        return none_found(asked, k)
    mesh = make_mesh(MeshSettings(), jax.local_devices()) if mesh is None else mesh
    tile = TILES.get(mesh.devices.flat[0].platform, LARGE_TILE)
    best = merge(_search(_in_chunks(questions, tile), candidates, scales, where, k, mesh, tile, block), mesh)
    return fetched(best, asked, k)


def none_found(asked: int, k: int) -> Neighbours:
    """What is found where there are no questions, or nothing to find."""
    return Neighbours(np.zeros((asked, k), np.float32), np.zeros((asked, k), np.int32))


def fetched(best: Best, asked: int, k: int) -> Neighbours:
    """The k best of `asked` questions, after `merge`.

    Raises:
      EndxError: a score is nan or infinite.
    """
    found, rows, unordered = (part.reshape(-1, part.shape[-1])[:asked, :k] for part in jax.device_get(best))
    broken = unordered.any(axis=1) | ~np.isfinite(found).all(axis=1)
    if broken.any():
        raise EndxError(
            f"the scores of question {broken.argmax()} hold nan or infinity: check the embeddings of that question and "
            "of the candidates for nan, inf and values too large to multiply"
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
    if len(candidates) > NOBODY:
        raise EndxError(
            f"{len(candidates)} candidates are more than ids of 32 bits can tell apart: search them in parts"
        )


def _in_chunks(questions: np.ndarray, tile: Tile) -> np.ndarray:
    """Questions [Q, E] in equal chunks [chunks, rows, E], filled up with zeros."""
    chunks = math.ceil(len(questions) / tile.questions)
    rows = round_up(math.ceil(len(questions) / chunks), 8)
    return fill_up(questions, chunks * rows).reshape(chunks, rows, -1)


def _search(questions, candidates, scales, where, k: int, mesh: Mesh, tile: Tile, block: int) -> Best:
    """The best that each device finds for questions [chunks, rows, E] among what it is sent."""
    count = len(candidates)
    block = round_up(min(block, count), tile.candidates * mesh.size)
    chunks, rows, _ = questions.shape
    best = nothing_yet(chunks * mesh.size, rows, k, NamedSharding(mesh, PartitionSpec(mesh.axis_names)))
    questions = place(questions, NamedSharding(mesh, WHOLE))
    for start in range(0, count, block):
        sent = send(slice(start, start + block), candidates, scales, where, mesh)
        jax.block_until_ready(best)  # the block before is done with, so that there are never three
        best = bring_in(best, questions, sent, np.int32(start), np.int32(count), mesh, tile)
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
    """Splits rows over the devices, filled up with zeros to `size` of them."""
    return place(fill_up(part, size), NamedSharding(mesh, PartitionSpec(mesh.axis_names)))


def fill_up(rows: np.ndarray, size: int) -> np.ndarray:
    """The rows and as many of zeros as are missing; the very same array where none is."""
    missing = size - len(rows)
    return np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1)) if missing else rows
