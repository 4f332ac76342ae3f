"""Evaluation on a whole index, by the ids of right documents or by answer strings."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from endx_jax import metrics
from endx_jax.data.documents import Document
from endx_jax.data.records import pad_ids, pad_rows
from endx_jax.data.relevance import Answered, contains_answer, searchable
from endx_jax.errors import EndxError
from endx_jax.models.sharding_hints import platform
from endx_jax.numerics import round_up
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.retrieval.evaluate import Evaluation
from endx_jax.retrieval.search import BLOCK, LARGE_TILE, TILES, Block, fill_up, scan_tiles, send, tile_scores
from endx_jax.retrieval.snapshot import Snapshot

# Values of k for top-k accuracy (DPR; Dong et al. 2022, Table 3).
CUTOFFS = (5, 20, 100)


def rows_of(snapshot: Snapshot, ids: Iterable[str], others: Iterable[str] = ()) -> dict[str, int]:
    """Finds the rows of documents by their ids; `others` may have no document.

    Raises:
      EndxError: there is no document with one of the ids.
    """
    wanted = set(ids)
    found = snapshot.rows_of(sorted(wanted.union(others)))
    missing = wanted - found.keys()
    if missing:
        raise EndxError(
            f"{len(missing):,} of {len(wanted):,} right documents are not in the index, such as {min(missing)!r}: "
            "encode the corpus that was judged, with its own ids"
        )
    return found


def evaluate_judged(
    snapshot: Snapshot,
    questions: np.ndarray,
    right: Sequence[Sequence[int]],
    depth: int,
    *,
    gains: Sequence[Sequence[float]] | None = None,
    excluded: Sequence[Sequence[int]] | None = None,
) -> Evaluation:
    """Ranks the right documents among all of the index, exactly as `evaluate` does, a block at a time.

    Args:
      snapshot: state of the index; deleted documents are ignored.
      questions: float32 [Q, E], as the index's model encodes them.
      right: for each question the rows of its right documents.
      depth: number of best documents kept per question.
      gains: gains of the right documents, in the order of `right`; None if all are 1.
      excluded: for each question the rows of documents that are not ranked for it; None if there are none.
    """
    left_out, positives = pad_ids(excluded or [()] * len(right)), pad_ids(right)
    found = snapshot.search(questions, depth + left_out.shape[1])
    dropped = (found.rows[:, :, None] == left_out[:, None]).any(axis=2)
    kept = np.argsort(dropped, axis=1, kind="stable")[:, :depth]
    rows, scores = (np.take_along_axis(x, kept, axis=1) for x in (found.rows, np.where(dropped, -np.inf, found.scores)))
    counted = streamed_counts(
        questions, positives, snapshot.embeddings, left_out, scales=snapshot.scales, where=snapshot.living
    )
    graded = None
    if gains is not None:
        judged = pad_rows(gains, 0, np.float32)
        own = np.where(positives >= 0, counted[1], np.nan)
        graded = np.asarray(metrics.ranked_gains(own, judged)), judged
    return Evaluation.of(places(*counted, positives), rows, scores.astype(np.float32), len(snapshot), graded)


@dataclasses.dataclass(frozen=True, eq=False)
class AnswerEvaluation:
    """Result of `evaluate_answered` for Q questions.

    Attributes:
      metrics: `accuracy@k`, the share of questions with an answer in one of the best k documents, in [0, 1].
      first: float32 [Q], rank of the first document that contains an answer; inf if none of the best documents does.
      top_ids: int32 [Q, depth], rows of the best documents.
      top_scores: float32 [Q, depth].
      candidates: number of documents in the index.
    """

    metrics: dict[str, float]
    first: np.ndarray
    top_ids: np.ndarray
    top_scores: np.ndarray
    candidates: int


def evaluate_answered(
    snapshot: Snapshot, questions: np.ndarray, asked: Sequence[Answered], cutoffs: Sequence[int] = CUTOFFS
) -> AnswerEvaluation:
    """Computes top-k accuracy as in DPR (Karpukhin et al. 2020) and Dong et al. (2022): see `data.relevance`.

    Args:
      snapshot: state of the index.
      questions: float32 [Q, E], as the index's model encodes them.
      asked: Q questions with their answers.
      cutoffs: the values of k.
    """
    found = snapshot.search(questions, max(cutoffs))

    texts = {
        row: searchable(passage(document)) for row, document in snapshot.read_documents(set(found.rows.flat)).items()
    }
    first = np.full(len(asked), np.inf, np.float32)
    for n, (question, rows) in enumerate(zip(asked, found.rows.tolist(), strict=True)):
        answers = [searchable(answer) for answer in question.answers]
        first[n] = next(
            (rank for rank, row in enumerate(rows, start=1) if contains_answer(texts[row], answers)), np.inf
        )
    metrics = {f"accuracy@{k}": float(np.mean(first <= k)) for k in cutoffs}
    return AnswerEvaluation(metrics, first, found.rows, found.scores, len(snapshot))


def passage(document: Document) -> str:
    """Returns a document's text without its title, as answers in titles are ignored."""
    title = document.metadata.get("title")
    return document.text.removeprefix(f"{title} ") if isinstance(title, str) else document.text


Array = jax.Array


def streamed_counts(
    questions, positives: np.ndarray, candidates, excluded: np.ndarray | None = None, *, scales=None, where=None
) -> tuple[np.ndarray, np.ndarray]:
    """Counts the wrong candidates before each question's right ones among all candidates by `metrics.TIE_RULE`.

    The ranks, given by `places`, equal `metrics.ranks` of all scores, in memory that does not grow with the corpus:
    right candidates are scored first, by products of the same shape, then the candidates that beat them are counted
    over the whole corpus.

    Args:
      questions: float32 [Q, E].
      positives: int32 [Q, P], rows of the right candidates, distinct, at least one, padded with -1; `where` is true for
        all of them.
      candidates: [N, E], an array, a memory map, or an object whose slices are arrays.
      excluded: int32 [Q, X], rows of candidates that do not count for a question, padded with -1; None: none.
      scales: float32 [N], factor of each candidate; None: 1.
      where: bool [N], true for candidates that count; None: all.

    Returns:
      int32 [Q, P], twice the number of wrong candidates with a higher score plus the number of those with an equal one;
      and float32 [Q, P], the scores of the right candidates.
    """
    mesh = make_mesh(MeshSettings(), jax.local_devices()[:1])
    tile = TILES.get(platform(mesh), LARGE_TILE)
    size = round_up(min(BLOCK, len(candidates)), tile.candidates)
    chunks = [slice(start, start + tile.questions) for start in range(0, len(questions), tile.questions)]
    rows = min(tile.questions, round_up(len(questions), 8))
    asked = [(fill_up(questions[c], rows), _padded(positives[c], rows)) for c in chunks]
    own = [_own_scores(q, p, candidates, scales, tile.candidates, mesh) for q, p in asked]
    beaten = [jnp.zeros(p.shape, jnp.int32) for _, p in asked]
    counting = np.ones(len(candidates), bool) if where is None else where
    for start in range(0, len(candidates), size):
        block = send(slice(start, start + size), candidates, scales, counting, mesh)
        for n, (q, p) in enumerate(asked):
            beaten[n] = _count(beaten[n], q, own[n], p - start, block, tile.candidates)
        jax.block_until_ready(beaten)  # the block is finished before the next is read
    counted, scores = (
        np.concatenate([np.asarray(part) for part in parts])[: len(questions)] for parts in (beaten, own)
    )
    if excluded is not None and (excluded >= 0).any():
        cut = [(q, _padded(excluded[c], rows)) for (q, _), c in zip(asked, chunks, strict=True)]
        others = [np.asarray(_own_scores(q, x, candidates, scales, tile.candidates, mesh)) for q, x in cut]
        other = np.where(excluded >= 0, np.concatenate(others)[: len(questions)], -np.inf)
        beats = np.sign(other[:, None, :] - scores[:, :, None]) + 1  # 2 for a higher score, 1 for an equal one
        counted = counted - beats.sum(axis=2, dtype=np.int32)
    return counted, scores


def _padded(positives: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(positives, ((0, rows - len(positives)), (0, 0)), constant_values=-1)


def places(beaten: np.ndarray, own: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Returns ranks, float32 [Q, P], ascending in each row and inf where padded, given `streamed_counts`."""
    order = np.argsort(np.where(positives >= 0, -own, np.inf), axis=1, kind="stable")
    doubled = np.take_along_axis(beaten, order, axis=1)
    places = 1 + np.arange(positives.shape[1]) + doubled / 2
    return np.where(np.take_along_axis(positives, order, axis=1) >= 0, places, np.inf).astype(np.float32)


def _own_scores(questions: np.ndarray, positives: np.ndarray, candidates, scales, tile: int, mesh: Mesh) -> Array:
    """Returns the scores [rows, P] of the right candidates; undefined where padded."""
    wanted = np.unique(positives[positives >= 0])
    own = jnp.zeros(positives.shape, jnp.float32)
    for start in range(0, len(wanted), tile):
        some = wanted[start : start + tile]
        own_scales = None if scales is None else _gathered(scales, some)
        block = send(slice(0, tile), _gathered(candidates, some), own_scales, None, mesh)
        places = np.searchsorted(some, positives)
        here = np.take(some, places, mode="clip") == positives
        own = _take_own(own, questions, block, np.where(here, places, -1))
    return own


def _gathered(parts, rows: np.ndarray) -> np.ndarray:
    """Returns rows of an object that supports slices only."""
    return np.concatenate([np.asarray(parts[row : row + 1]) for row in rows.tolist()])


@jax.jit
def _take_own(own: Array, questions: Array, tile: Block, places: Array) -> Array:
    found = jnp.take_along_axis(tile_scores(questions, tile), jnp.maximum(places, 0), axis=1)
    return jnp.where(places >= 0, found, own)


@functools.partial(jax.jit, static_argnames="size")
def _count(beaten: Array, questions: Array, own: Array, positives: Array, block: Block, size: int) -> Array:
    """Adds 2 for every wrong candidate of a block with a higher score, and 1 for one with an equal score.

    Args:
      beaten: int32 [rows, P], the count so far.
      questions: float32 [rows, E].
      own: float32 [rows, P].
      positives: int32 [rows, P], counted from the block's first row.
      block: block of candidates.
      size: candidates per tile.
    """
    rows = jnp.arange(len(questions))[:, None]

    def count_tile(beaten, scores, where, first):
        columns = positives - first
        outside = (columns < 0) | (columns >= size)
        wrong = jnp.broadcast_to(where[None], scores.shape)
        wrong = wrong.at[rows, jnp.where(outside, size, columns)].set(False, mode="drop")

        def place(p, beaten):
            mine = own[:, p][:, None]
            # As in `metrics.ranks`, nan counts against the right candidate.
            beats = (~(scores <= mine)).astype(jnp.int32) + ~(scores < mine)
            return beaten.at[:, p].add(jnp.sum(jnp.where(wrong, beats, 0), axis=1))

        return jax.lax.fori_loop(0, own.shape[1], place, beaten)

    return scan_tiles(beaten, questions, block, block.embeddings.shape[0] // size, size, count_tile)
