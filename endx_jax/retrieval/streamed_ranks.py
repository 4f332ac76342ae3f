"""Exact ranks of right candidates in a corpus of any size: counted a block at a time, as `metrics.ranks` counts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.numerics import round_up
from endx_jax.retrieval.best import Block
from endx_jax.retrieval.search import BLOCK, LARGE_TILE, TILES, fill_up

Array = jax.Array


def streamed_ranks(questions, positives: np.ndarray, candidates, *, scales=None, where=None) -> np.ndarray:
    """Places of each question's right candidates among all candidates, best first, by `metrics.TIE_RULE`.

    The same as `metrics.ranks` of all scores, in memory that does not grow with the corpus: right candidates are scored
    first, by products of the same shape, and then the candidates that beat them are counted over the whole corpus.

    Args:
      questions: float32 [Q, E].
      positives: int32 [Q, P], rows of the right candidates, distinct, at least one, padded with -1; none of them left
        out by `where`.
      candidates: [N, E], an array, a memory map, or anything whose slices are arrays.
      scales: float32 [N], what to multiply each candidate by; None: 1.
      where: bool [N], which candidates count; None: all.

    Returns:
      float32 [Q, P], ascending in each row, inf where padded.
    """
    tile = TILES.get(jax.default_backend(), LARGE_TILE)
    size = round_up(min(BLOCK, len(candidates)), tile.candidates)
    chunks = [slice(start, start + tile.questions) for start in range(0, len(questions), tile.questions)]
    rows = min(tile.questions, round_up(len(questions), 8))
    asked = [(fill_up(questions[c], rows), _padded(positives[c], rows)) for c in chunks]
    own = [_own_scores(q, p, candidates, scales, tile.candidates) for q, p in asked]
    beaten = [jnp.zeros(p.shape, jnp.int32) for _, p in asked]
    for start in range(0, len(candidates), size):
        block = _block(slice(start, start + size), candidates, scales, where)
        for n, (q, p) in enumerate(asked):
            beaten[n] = _count(beaten[n], q, own[n], p - start, block, tile.candidates)
        jax.block_until_ready(beaten)  # the block is done with before the next is read
    counted, scores = (
        np.concatenate([np.asarray(part) for part in parts])[: len(questions)] for parts in (beaten, own)
    )
    return _places(counted, scores, positives)


def _padded(positives: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(positives, ((0, rows - len(positives)), (0, 0)), constant_values=-1)


def _places(beaten: np.ndarray, own: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Ranks [Q, P] from twice the number of wrong candidates before each right one."""
    order = np.argsort(np.where(positives >= 0, -own, np.inf), axis=1, kind="stable")
    doubled = np.take_along_axis(beaten, order, axis=1)
    places = 1 + np.arange(positives.shape[1]) + doubled / 2
    return np.where(np.take_along_axis(positives, order, axis=1) >= 0, places, np.inf).astype(np.float32)


def _block(rows: slice, candidates, scales, where) -> Block:
    """Some of the corpus, filled up with candidates that do not count."""
    size = rows.stop - rows.start
    embeddings = np.asarray(candidates[rows])
    counts = np.ones(len(embeddings), bool) if where is None else where[rows]
    return Block(
        jax.device_put(fill_up(embeddings, size)),
        None if scales is None else jax.device_put(fill_up(np.asarray(scales[rows]), size)),
        jax.device_put(fill_up(counts, size)),
    )


def _own_scores(questions: np.ndarray, positives: np.ndarray, candidates, scales, tile: int) -> Array:
    """Scores [rows, P] of the right candidates; anything where padded."""
    wanted = np.unique(positives[positives >= 0])
    own = jnp.zeros(positives.shape, jnp.float32)
    for start in range(0, len(wanted), tile):
        some = wanted[start : start + tile]
        own_scales = None if scales is None else _gathered(scales, some)
        block = _block(slice(0, tile), _gathered(candidates, some), own_scales, None)
        places = np.searchsorted(some, positives)
        here = np.take(some, places, mode="clip") == positives
        own = _take_own(own, questions, block, np.where(here, places, -1))
    return own


def _gathered(parts, rows: np.ndarray) -> np.ndarray:
    """Some rows of what can be sliced."""
    return np.concatenate([np.asarray(parts[row : row + 1]) for row in rows.tolist()])


@jax.jit
def _take_own(own: Array, questions: Array, tile: Block, places: Array) -> Array:
    found = jnp.take_along_axis(_scores(questions, tile), jnp.maximum(places, 0), axis=1)
    return jnp.where(places >= 0, found, own)


def _scores(questions: Array, tile: Block) -> Array:
    embeddings = tile.embeddings.astype(jnp.float32)
    if tile.scales is not None:
        embeddings *= tile.scales[:, None]
    return jax.lax.dot_general(questions, embeddings, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST)


@functools.partial(jax.jit, static_argnames="size")
def _count(beaten: Array, questions: Array, own: Array, positives: Array, block: Block, size: int) -> Array:
    """Adds 2 for every wrong candidate of a block with a higher score, and 1 for one with an equal score.

    Args:
      beaten: int32 [rows, P], what was counted so far.
      questions: float32 [rows, E].
      own: float32 [rows, P].
      positives: int32 [rows, P], counted from the block's first row.
      block: of candidates.
      size: of the tiles they are scored in.
    """
    rows = jnp.arange(len(questions))[:, None]

    def count_tile(i, beaten):
        tile = jax.tree.map(lambda part: jax.lax.dynamic_slice_in_dim(part, i * size, size), block)
        scores = _scores(questions, tile)
        columns = positives - i * size
        outside = (columns < 0) | (columns >= size)
        wrong = jnp.broadcast_to(tile.where[None], scores.shape)
        wrong = wrong.at[rows, jnp.where(outside, size, columns)].set(False, mode="drop")

        def place(p, beaten):
            mine = own[:, p][:, None]
            # As in `metrics.ranks`: nan is on the losing side.
            beats = (~(scores <= mine)).astype(jnp.int32) + ~(scores < mine)
            return beaten.at[:, p].add(jnp.sum(jnp.where(wrong, beats, 0), axis=1))

        return jax.lax.fori_loop(0, own.shape[1], place, beaten)

    return jax.lax.fori_loop(0, block.embeddings.shape[0] // size, count_tile, beaten)
