"""Scores of dense embeddings: inner products that do not depend on how the questions are cut into blocks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.errors import EndxError

Array = jax.Array

# Every product on a device has the shape [16, E] x [E, a multiple of 128]. A matrix product picks its kernel, and with
# it the order of its sums, by shape: with one shape for all blocks, the same question and candidate give the same bits
# in each, and with no left-over columns equal candidates give equal scores, so that ties are ties. 16 is the smallest
# block that `evaluate` chooses.
QUESTION_TILE = 16
CANDIDATE_MULTIPLE = 128


def dense_scores(question_embeddings, candidate_embeddings):
    """Inner products as blocks of scores, for `evaluate`.

    Products are float32 at the highest precision of the device (no TF32 or bfloat16 passes). Normalise the embeddings
    before to score by cosine.

    Args:
      question_embeddings: [Q, E], held on the host; a block at a time goes to the device.
      candidate_embeddings: [N, E], put on the device once; a JAX array sharded over a mesh stays sharded.

    Returns:
      A function `(start, stop) -> float32 [stop - start, N]`, whose values are the same for every choice of blocks.
      Another number of devices may change the last bit.

    Raises:
      EndxError: the two sides differ in width.
    """
    questions = np.asarray(question_embeddings, np.float32)
    candidates = jnp.asarray(candidate_embeddings, jnp.float32)
    if questions.shape[1] != candidates.shape[1]:
        raise EndxError(
            f"question embeddings are {questions.shape[1]} wide and candidate embeddings {candidates.shape[1]}: "
            "encode both with the same model"
        )
    count = candidates.shape[0]
    multiple = CANDIDATE_MULTIPLE * len(candidates.sharding.device_set)
    candidates = jnp.pad(candidates, ((0, -count % multiple), (0, 0)))

    def score_block(start: int, stop: int) -> Array:
        block = questions[start:stop]
        padded = np.pad(block, ((0, -len(block) % QUESTION_TILE), (0, 0)))
        return _products(padded, candidates, len(block), count)

    return score_block


@functools.partial(jax.jit, static_argnums=(2, 3))
def _products(questions, candidates, rows, columns):
    def product(tile):
        width = (((1,), (1,)), ((), ()))
        return jax.lax.dot_general(tile, candidates, width, precision=jax.lax.Precision.HIGHEST)

    tiles = questions.reshape(-1, QUESTION_TILE, questions.shape[1])
    scores = jax.lax.map(product, tiles).reshape(-1, candidates.shape[0])
    return scores[:rows, :columns]
