"""The best candidates so far: kept on the devices while candidates are brought in, block by block."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Array = jax.Array

# The id of a place that no candidate was found for.
NOBODY = np.iinfo(np.int32).max
WHOLE = PartitionSpec()


class Tile(NamedTuple):
    """The pieces in which a device works. All products of a search have one shape, and so one order of sums."""

    questions: int  # at most, that are scored together
    candidates: int  # that they are scored against at a time
    merged: int  # questions whose best are brought up to date at a time, of those for which a tile holds something new


class Block(NamedTuple):
    """Candidates that are brought in together. Of a mesh's devices each holds its own rows.

    Attributes:
      embeddings: [b, E], of any kind of number.
      scales: float32 [b], what to multiply each row by; None: 1.
      where: bool [b], which rows count; None: all.
    """

    embeddings: Array
    scales: Array | None
    where: Array | None


class Best(NamedTuple):
    """What was found so far. Chunks of questions lead; those of all devices, one after the other, where it is split."""

    scores: Array  # float32 [chunks, rows, k], descending; -inf where fewer candidates were seen
    ids: Array  # int32 [chunks, rows, k]
    unordered: Array  # bool [chunks, rows, 1]: whether a score was nan


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def nothing_yet(chunks: int, rows: int, k: int, split: NamedSharding) -> Best:
    """The best of no candidates."""
    best = Best(
        scores=jnp.full((chunks, rows, k), -jnp.inf, jnp.float32),
        ids=jnp.full((chunks, rows, k), NOBODY, jnp.int32),
        unordered=jnp.zeros((chunks, rows, 1), bool),
    )
    return jax.lax.with_sharding_constraint(best, split)


@functools.partial(jax.jit, static_argnames=("mesh", "tile"))
def bring_in(best: Best, questions, block: Block, start, count, mesh: Mesh, tile: Tile) -> Best:
    """Brings in a block that begins with candidate `start` of `count`, for questions [chunks, rows, E]."""

    def on_device(best, questions, block, start, count):
        size = len(block.embeddings)
        start = start + jax.lax.axis_index(mesh.axis_names) * size
        tiles = (jnp.clip(count - start, 0, size) + tile.candidates - 1) // tile.candidates

        def search(chunk):
            rows, best = chunk

            def bring_in_tile(i, best):
                embeddings, scales, where = jax.tree.map(
                    lambda part: jax.lax.dynamic_slice_in_dim(part, i * tile.candidates, tile.candidates), block
                )
                embeddings = embeddings.astype(jnp.float32)
                if scales is not None:
                    embeddings *= scales[:, None]
                return _bring_in_tile(best, rows, embeddings, where, start + i * tile.candidates, count, tile.merged)

            return jax.lax.fori_loop(0, tiles, bring_in_tile, best)

        return jax.lax.map(search, (questions, best))

    split = PartitionSpec(mesh.axis_names)
    in_specs = (split, WHOLE, split, WHOLE, WHOLE)
    shared = jax.shard_map(on_device, mesh=mesh, in_specs=in_specs, out_specs=split, check_vma=False)
    return shared(best, questions, block, start, count)


def _bring_in_tile(best: Best, questions, candidates, where, first, count, merged: int) -> Best:
    """Brings in candidates [c, E], the ids of which begin with `first`, for one chunk of questions [rows, E]."""
    width = (((1,), (1,)), ((), ()))
    scores = jax.lax.dot_general(questions, candidates, width, precision=jax.lax.Precision.HIGHEST)
    if where is not None:
        scores = jnp.where(where[None], scores, -jnp.inf)
    highest = scores.max(axis=1)
    # Ids ascend: what only equals the last of the best comes after it.
    newer = highest > best.scores[:, -1]
    past_end = first + jnp.arange(scores.shape[1], dtype=jnp.int32) >= count
    found = _merge_rows(best, scores, newer, first, past_end, min(merged, len(questions)))
    return found._replace(unordered=best.unordered | jnp.isnan(highest)[:, None])


def _merge_rows(best: Best, scores, newer, first, past_end, step: int) -> Best:
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
def merge(best: Best, mesh: Mesh) -> Best:
    """The best of all devices, on each of them."""
    k = best.scores.shape[-1]

    def on_device(best):
        scores, ids, unordered = jax.lax.all_gather(best, mesh.axis_names, axis=2, tiled=True)
        negative, ids = jax.lax.sort((-scores, ids), num_keys=2)
        return Best(-negative[..., :k], ids[..., :k], unordered)

    split = PartitionSpec(mesh.axis_names)
    return jax.shard_map(on_device, mesh=mesh, in_specs=(split,), out_specs=WHOLE, check_vma=False)(best)
