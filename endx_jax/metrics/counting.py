"""Exact ranks of the right candidates, by counting instead of sorting."""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays

Array = jax.Array

TIE_RULE = (
    "Ranks are exact over the whole pool: a tie with wrong candidates counts as the mean of the tied places, and ties "
    "among the right candidates of one question cost nothing."
)
"""Rule for ties, printed with results."""


@jax.jit
def ranks(scores: Array, positives: Array) -> Array:
    """Computes the ranks of each question's right candidates among all candidates, best first.

    The i-th best right candidate (i from 1) has rank

        i + #{wrong candidates scored higher} + #{wrong candidates scored equal} / 2.

    With one right candidate this is its `scipy.stats.rankdata(-scores, "average")`, the rule of the ReQA evaluation
    script (Ahmad et al. 2019), which the ENDX paper uses. Right candidates are excluded from the counts by index, not
    by score, so that rounding cannot make one outrank itself. Memory is O(b N + b P): the pool is compared once for
    each right candidate of the question that has most of them.

    A comparison with nan counts against the right candidate: nan never improves a rank.

    Args:
      scores: [b, N], higher is better; N below 2^23, so that half places are exact in float32.
      positives: int32 [b, P], distinct indices of the right candidates, padded with -1.

    Returns:
      float32 [b, P], ascending in each row, inf where padded.

    Raises:
      EndxError: for shapes that do not agree.
    """
    check_arrays({"scores": (scores, "[B, N]"), "positives": (positives, "integer [B, P]")})
    given = positives >= 0
    counts = jnp.sum(given, axis=1)
    rows = jnp.arange(scores.shape[0])[:, None]
    # Padding is sent past the last column and dropped: -1 would mean the last candidate.
    columns = jnp.where(given, positives, scores.shape[1])
    wrong = jnp.ones(scores.shape, bool).at[rows, columns].set(False, mode="drop")
    right = scores.at[rows, columns].get(mode="fill", fill_value=jnp.nan)
    right = -jnp.sort(-right, axis=1)  # best first; nan, which includes the padding, last

    def place(i, result):
        own = right[:, i][:, None]
        # "Not lower" and "not at most" instead of ">=" and ">": that is what puts a nan on the losing side.
        beats = (~(scores <= own)).astype(jnp.int32) + ~(scores < own)
        doubled = jnp.sum(jnp.where(wrong, beats, 0), axis=1)
        return result.at[:, i].set(jnp.where(i < counts, i + 1 + doubled / 2, jnp.inf).astype(jnp.float32))

    unranked = jnp.full(positives.shape, jnp.inf, jnp.float32)
    return jax.lax.fori_loop(0, jnp.max(counts, initial=0), place, unranked)
