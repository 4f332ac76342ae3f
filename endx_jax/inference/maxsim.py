"""MaxSim of encoded texts, in tiles of bounded memory."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from endx_jax.batch import TokenVectors
from endx_jax.data.batches.ragged import RaggedVectors, check_widths
from endx_jax.inference.text_batches import padded_width, split_by_length
from endx_jax.losses.maxsim import maxsim
from endx_jax.numerics import Quantized, dequantize, unit_rows

# Tokens of questions and of candidates in a tile: on a CPU, 2 MB of products stay in the cache. The larger tile, of
# accelerators, is not measured.
TILES = {"cpu": (256, 2048)}
LARGE_TILE = (2048, 32768)

# Norms that differ from 1 by less are those of unit vectors, rounded to float16 or int8.
ROUNDING = 0.01


def maxsim_scores(questions: RaggedVectors, candidates: RaggedVectors, *, reverse: bool = False) -> Callable:
    """Returns a function that computes MaxSim of blocks of questions, for `ranking.evaluate`.

    A block of candidates at a time is on the device.

    Args:
      questions: token vectors of Q texts, float32, as `EmbeddingModel.ranked` returns them.
      candidates: token vectors of N texts.
      reverse: true if the first are answers and the second questions, whose tokens are summed over.

    Returns:
      A function `(start, stop) -> float32 [stop - start, N]`.

    Raises:
      EndxError: widths of embeddings differ.
    """
    check_widths([side.values for side in (questions, candidates) if len(side.values)])
    question_tokens, candidate_tokens = TILES.get(jax.default_backend(), LARGE_TILE)
    blocks = _blocks(candidates.lengths, candidate_tokens)

    def score_block(start: int, stop: int) -> np.ndarray:
        scores = np.zeros((stop - start, len(candidates)), np.float32)
        if not (len(questions.values) and len(candidates.values)):
            return scores
        of_questions = _blocks(questions.lengths[start:stop], question_tokens)
        tiles = [(rows, TokenVectors(*questions.pad(start + rows, *shape))) for rows, *shape in of_questions]
        for columns, *shape in blocks:
            block = TokenVectors(*candidates.pad(columns, *shape))
            for rows, tile in tiles:
                scores[np.ix_(rows, columns)] = _score(tile, block, reverse)[: len(rows), : len(columns)]
        return scores

    return score_block


def listed_vectors(embeddings: Any) -> Any:
    """Returns a list of token vectors [L, E], as `EmbeddingModel.encode_query` returns it, as `RaggedVectors`.

    Other embeddings are returned as they are, or as an array.
    """
    if embeddings is None or isinstance(embeddings, RaggedVectors | Quantized | np.ndarray):
        return embeddings
    by_token = isinstance(embeddings, list) and all(isinstance(x, Quantized) or np.ndim(x) == 2 for x in embeddings)
    return RaggedVectors.of(embeddings) if by_token and embeddings else np.asarray(embeddings)


def pooled(embeddings: Any, *, cosine: bool) -> Any:
    """Returns one embedding for each text, by which an index finds it: the means of token vectors, float32 [N, E].

    Other embeddings [N, E] are returned as they are. With `cosine` all have unit norm, but zeros stay zeros.
    """
    embeddings = listed_vectors(embeddings)
    if not isinstance(embeddings, RaggedVectors):
        return _of_unit_norm(embeddings) if cosine and embeddings is not None else embeddings
    means = np.zeros((len(embeddings), jax.tree.leaves(embeddings.values)[0].shape[1]), np.float32)
    for row, text in enumerate(embeddings):  # one at a time, since dequantized they are four times as large
        vectors = dequantize(text)
        means[row] = vectors.sum(axis=0) / max(1, len(vectors))
    return unit_rows(means) if cosine else means


def _of_unit_norm(embeddings: Any) -> Any:
    """Scales embeddings [N, E] to unit norm; those that have it are returned bit for bit."""
    vectors, scales = embeddings if isinstance(embeddings, Quantized) else (embeddings, np.float32(1))
    norms = np.sqrt(np.einsum("...e,...e->...", vectors, vectors, dtype=np.float64)) * scales
    unit = ~((np.abs(norms - 1) > ROUNDING) & (norms > 0) & (norms < np.inf))  # also zeros, and what is not finite
    if unit.all():
        return embeddings
    norms = np.where(unit, 1, norms)
    if isinstance(embeddings, Quantized):
        return Quantized(vectors, (scales / norms).astype(np.float32))
    return (vectors / norms[..., None]).astype(vectors.dtype)


def maxsim_of(question: np.ndarray, texts: RaggedVectors) -> np.ndarray:
    """Returns MaxSim of one question [L, E] with n texts, float32 [n], on the host."""
    scores, some = np.zeros(len(texts), np.float32), texts.lengths > 0  # a text without tokens scores 0
    if some.any():
        products = texts.values @ question.T
        scores[some] = np.maximum.reduceat(products, texts.offsets[:-1][some]).sum(axis=1)
    return scores


@functools.partial(jax.jit, static_argnums=2)
def _score(rows: TokenVectors, columns: TokenVectors, reverse: bool) -> jax.Array:
    return maxsim(columns, rows).T if reverse else maxsim(rows, columns)


def _blocks(lengths: np.ndarray, tokens: int) -> list[tuple[np.ndarray, int, int]]:
    """Returns (indices, rows, padded length) of blocks of texts of similar lengths, few of which differ in shape."""
    return [*split_by_length(lengths, padded_width, lambda width, left: max(1, tokens // width))]
