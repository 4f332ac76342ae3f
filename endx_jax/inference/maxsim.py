"""MaxSim of encoded texts, in tiles of bounded memory."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.batch import TokenVectors
from endx_jax.errors import EndxError
from endx_jax.inference.text_batches import padded_width, split_by_length
from endx_jax.losses.maxsim import maxsim
from endx_jax.numerics import Quantized, dequantize, holds_objects, unit_rows

# Tokens of questions and of candidates in a tile: on a CPU, 2 MB of products stay in the cache. The larger tile, of
# accelerators, is not measured.
TILES = {"cpu": (256, 2048)}
LARGE_TILE = (2048, 32768)


def maxsim_scores(questions: np.ndarray, candidates: np.ndarray, *, reverse: bool = False) -> Callable:
    """Returns a function that computes MaxSim of blocks of questions, for `ranking.evaluate`.

    A block of candidates at a time is on the device.

    Args:
      questions: [Q] objects, token embeddings [L, E], as `EmbeddingModel.ranked` returns them.
      candidates: [N] objects, [L, E].
      reverse: true if the first are answers and the second questions, whose tokens are summed over.

    Returns:
      A function `(start, stop) -> float32 [stop - start, N]`.

    Raises:
      EndxError: widths of embeddings differ.
    """
    widths = sorted({len(row[0]) for row in (*questions, *candidates) if len(row)})
    if len(widths) > 1:
        raise EndxError(f"token embeddings have {' and '.join(map(str, widths))} dimensions: encode with one model")
    question_tokens, candidate_tokens = TILES.get(jax.default_backend(), LARGE_TILE)
    blocks = _blocks(candidates, candidate_tokens)

    def score_block(start: int, stop: int) -> np.ndarray:
        scores = np.zeros((stop - start, len(candidates)), np.float32)
        of_questions = _blocks(questions[start:stop], question_tokens)
        tiles = [(rows, _pad(questions[start + rows], widths, size, length)) for rows, size, length in of_questions]
        for columns, size, length in blocks:
            block = _pad(candidates[columns], widths, size, length)
            for rows, tile in tiles:
                scores[np.ix_(rows, columns)] = _score(tile, block, reverse)[: len(rows), : len(columns)]
        return scores

    return score_block


def pooled(embeddings: Any, *, cosine: bool, width: int = 0) -> Any:
    """Returns the means of token vectors, objects [N] of [L, E], as float32 [N, E], by which an index finds the texts.

    With `cosine` they have unit norm. Embeddings [N, E] are returned as they are. `width` is E if N is 0.
    """
    if not holds_objects(embeddings):
        return embeddings
    texts = [dequantize(text) if isinstance(text, Quantized) else text for text in embeddings]
    means = np.zeros((len(texts), texts[0].shape[1] if texts else width), np.float32)
    for row, text in enumerate(texts):
        means[row] = text.sum(axis=0) / max(1, len(text))
    return unit_rows(means) if cosine else means


def maxsim_of(question: np.ndarray, texts: Sequence | np.ndarray) -> np.ndarray:
    """Returns MaxSim of one question [L, E] with n texts [L, E], float32 [n], on the host."""
    scores, lengths = np.zeros(len(texts), np.float32), np.array([len(text) for text in texts], int)
    some = lengths > 0  # a text without tokens scores 0
    if some.any():
        starts = np.cumsum(lengths[some]) - lengths[some]
        products = np.concatenate([text for text in texts if len(text)]) @ question.T
        scores[some] = np.maximum.reduceat(products, starts).sum(axis=1)
    return scores


@functools.partial(jax.jit, static_argnums=2)
def _score(rows: TokenVectors, columns: TokenVectors, reverse: bool) -> jax.Array:
    return maxsim(columns, rows).T if reverse else maxsim(rows, columns)


def _blocks(texts: np.ndarray, tokens: int) -> list[tuple[np.ndarray, int, int]]:
    """Returns (indices, rows, padded length) of blocks of texts of similar lengths, few of which differ in shape."""
    lengths = np.array([len(text) for text in texts], int)
    return [*split_by_length(lengths, padded_width, lambda width, left: max(1, tokens // width))]


def _pad(texts: np.ndarray, widths: list[int], rows: int, length: int) -> TokenVectors:
    values, mask = np.zeros((rows, length, *widths), np.float32), np.zeros((rows, length), bool)
    for row, text in enumerate(texts):
        values[row, : len(text)], mask[row, : len(text)] = text, True
    return TokenVectors(jnp.asarray(values), jnp.asarray(mask))
