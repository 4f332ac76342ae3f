"""MaxSim, the score of late interaction (ColBERT, Khattab and Zaharia 2020, arXiv 2004.12832).

The score of a question and an answer is the sum, over the question's tokens, of the highest inner product with a token
of the answer. Tokens that tie for the highest share its gradient equally. A text without tokens that count scores 0,
and has no gradient.
"""

import jax
import jax.numpy as jnp

from endx_jax.batch import TokenVectors
from endx_jax.losses.rows import map_rows

Array = jax.Array

# Largest number of products of two tokens in a tile. On a CPU, 2 MB of them stay in the cache.
PRODUCTS = 1 << 23
CPU_PRODUCTS = 1 << 19


def maxsim(questions: TokenVectors, answers: TokenVectors) -> Array:
    """Returns the scores of Q questions and N answers, [Q, N]; all products of their tokens are in memory."""
    products = jnp.einsum("ike,jle->ikjl", questions.values, answers.values, precision=jax.lax.Precision.HIGHEST)
    highest = jnp.max(jnp.where(answers.mask[None, None], products, -jnp.inf), axis=3)
    counted = questions.mask[:, :, None] & jnp.any(answers.mask, axis=1)[None, None]
    return jnp.sum(jnp.where(counted, highest, 0), axis=1)


def listed_maxsim(questions: TokenVectors, answers: TokenVectors) -> Array:
    """Returns the scores of each question's own answers, [B, N], for B questions and answers of [B, N].

    Products of tokens are computed for some questions at a time, and again for the gradient.
    """
    size = max(1, PRODUCTS // max(1, questions.mask.shape[1] * answers.mask[0].size))

    def of_question(row):
        question, own = row
        return maxsim(jax.tree.map(lambda x: x[None], question), own)[0]

    return map_rows(of_question, (questions, answers), size)


def tile_of(question_length: int, answer_length: int, products: int = PRODUCTS) -> int:
    """Returns the side of tiles of scores with at most `products` products of tokens, a power of two."""
    pairs = products // max(1, question_length * answer_length)
    return 1 << max(0, (pairs.bit_length() - 1) // 2)
