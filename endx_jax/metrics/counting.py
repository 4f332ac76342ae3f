"""Exact ranks of right candidates, by counting instead of sorting."""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays

Array = jax.Array

TIE_RULE = (
    "Ranks are exact over the whole pool: a right candidate that ties with wrong ones gets the mean of the tied ranks, "
    "and ties among the right candidates of a question do not change their ranks."
)
"""Tie rule, printed with results."""


@jax.jit
def ranks(scores: Array, positives: Array) -> Array:
    """Returns the ranks of each question's right candidates among all candidates.

    The i-th best right candidate (i from 1) has rank

        i + #{wrong candidates with a higher score} + #{wrong candidates with an equal score} / 2.

    With one right candidate this is its value of `scipy.stats.rankdata(-scores, "average")`, the tie rule of the ReQA
    evaluation script (Ahmad et al. 2019), which the ENDX paper uses. Right candidates are excluded from the counts by
    index, not by score, so that rounding can't make one outrank itself. A comparison with nan counts against the right
    candidate, so nan never improves a rank. Memory is O(B N + B P), time O(B N P).

    Args:
      scores: scores [B, N], higher is better; N must be below 2^23, so that half ranks are exact in float32.
      positives: int32 [B, P], distinct indices of the right candidates, padded with -1.

    Returns:
      float32 [B, P], ascending in each row, inf where padded.

    Raises:
      EndxError: the shapes do not match.

    Examples:
      >>> scores = jnp.array([[0.9, 0.8, 0.1], [0.3, 0.3, 0.2]])
      >>> print(metrics.ranks(scores, positives=jnp.array([[0, 2], [0, -1]])))  # tied with one: + 1 / 2
      [[1.  3. ]
       [1.5 inf]]
    """
    check_arrays({"scores": (scores, "[B, N]"), "positives": (positives, "integer [B, P]")})
    is_positive = positives >= 0
    counts = jnp.sum(is_positive, axis=1)
    rows = jnp.arange(scores.shape[0])[:, None]
    # Padding becomes an index past the last column, which is dropped; -1 would index the last candidate.
    columns = jnp.where(is_positive, positives, scores.shape[1])
    wrong = jnp.ones(scores.shape, bool).at[rows, columns].set(False, mode="drop")
    right = scores.at[rows, columns].get(mode="fill", fill_value=jnp.nan)
    right = -jnp.sort(-right, axis=1)  # best first; nan, including padding, last

    def rank_column(i, result):
        right_score = right[:, i][:, None]
        # Negated comparisons instead of ">" and ">=" count nan against the right candidate.
        beats = (~(scores <= right_score)).astype(jnp.int32) + ~(scores < right_score)
        doubled = jnp.sum(jnp.where(wrong, beats, 0), axis=1)
        return result.at[:, i].set(jnp.where(i < counts, i + 1 + doubled / 2, jnp.inf).astype(jnp.float32))

    unranked = jnp.full(positives.shape, jnp.inf, jnp.float32)
    return jax.lax.fori_loop(0, jnp.max(counts, initial=0), rank_column, unranked)


@jax.jit
def ranked_gains(scores: Array, gains: Array) -> Array:
    """Returns the gain at each of the ranks of `ranks`, of right candidates with different gains.

    Right candidates with equal scores all get their mean gain, so that nDCG does not depend on their order.

    Args:
      scores: scores of the right candidates [B, P], nan where padded.
      gains: their gains [B, P], 0 where padded.

    Returns:
      float32 [B, P], 0 where padded.

    Examples:
      >>> print(metrics.ranked_gains(jnp.array([[0.5, 0.9, 0.5]]), gains=jnp.array([[1, 1, 3]])))
      [[1. 2. 2.]]
    """
    check_arrays({"scores": (scores, "[B, P]"), "gains": (gains, "[B, P]")})
    order = jnp.argsort(-scores, axis=1)  # best first; nan last
    scores, gains = (jnp.take_along_axis(x, order, axis=1) for x in (scores, gains.astype(jnp.float32)))

    def mean_column(i, result):
        tied = scores == scores[:, i][:, None]
        total = jnp.sum(jnp.where(tied, gains, 0), axis=1)
        return result.at[:, i].set(total / jnp.maximum(jnp.sum(tied, axis=1), 1))

    return jax.lax.fori_loop(0, scores.shape[1], mean_column, jnp.zeros_like(gains))
