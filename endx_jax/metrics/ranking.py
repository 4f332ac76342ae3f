"""Exact ranks of right candidates, by counting instead of sorting, and ranking metrics as functions of the ranks.

Every metric takes `ranks` [Q, P], NumPy or JAX: the ranks of each question's right candidates, ascending from 1 and
padded with inf, as `endx_jax.metrics.ranks` returns them. It returns one value in [0, 1] per question, [Q], and raises
EndxError for ranks of another shape or a cutoff that is not positive.

Tied ranks may be fractional; a cutoff n includes ranks <= n. For a question without right candidates, recall, nDCG and
average precision are nan (0/0), and reciprocal rank, hit and precision are 0. `endx_jax.ranking.evaluate` raises
EndxError for such questions.

Below, A* is the set of right candidates of a question and r_1 < r_2 < ... are their ranks.
"""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays, check_positive

Array = jax.Array

RECALLS = (1, 2, 5, 10, 20, 50)
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

    Examples:
      >>> scores = jnp.array([[0.9, 0.8, 0.1], [0.3, 0.3, 0.2]])
      >>> print(metrics.ranks(scores, positives=jnp.array([[0, 2], [0, -1]])))  # tied with one: + 1 / 2
      [[1.  3. ]
       [1.5 inf]]
    """
    check_arrays({"scores": (scores, "[B, N]"), "positives": (positives, "integer [B, P]")})
    unranked = jnp.full(positives.shape, jnp.inf, jnp.float32)
    if not scores.size or not positives.size:
        return unranked
    scores = scores * 1.0  # integers have no nan
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

    def mean_gain(score):
        tied = scores == score[:, None]
        return jnp.sum(jnp.where(tied, gains, 0), axis=1) / jnp.maximum(jnp.sum(tied, axis=1), 1)

    return jax.lax.map(mean_gain, scores.T).T


def reciprocal_rank(ranks: Array, cutoff: int | None = None) -> Array:
    """Returns 1 / r_1, or 0 if r_1 > `cutoff`; the mean over questions is MRR or MRR@n (Voorhees 1999).

    Examples:
      >>> print(metrics.reciprocal_rank(jnp.array([[1.0, 3.0], [4.0, jnp.inf]])))
      [1.   0.25]
    """
    best = _checked(ranks, cutoff)[:, 0]
    return 1 / best if cutoff is None else jnp.where(best <= cutoff, 1 / best, 0)


def hit_at(ranks: Array, n: int) -> Array:
    """Returns 1 if r_1 <= n, else 0; the ReQA evaluation script (Ahmad et al. 2019) calls the mean R@n.

    Examples:
      >>> print(metrics.hit_at(jnp.array([[1.0, 3.0], [4.0, jnp.inf]]), 3))
      [1. 0.]
    """
    ranks = _checked(ranks, n)
    return (ranks[:, 0] <= n).astype(ranks.dtype)


def precision_at_1(ranks: Array) -> Array:
    """Returns 1 if r_1 = 1, else 0: P@1 of MultiReQA (Guo et al. 2020), equal to `hit_at(ranks, 1)`.

    Examples:
      >>> print(metrics.precision_at_1(jnp.array([[1.0, 3.0], [4.0, jnp.inf]])))
      [1. 0.]
    """
    return hit_at(ranks, 1)


def recall_at(ranks: Array, n: int) -> Array:
    """Returns |top-n ∩ A*| / |A*| = #{i : r_i <= n} / |A*| (ENDX, Eq. 15).

    Examples:
      >>> print(metrics.recall_at(jnp.array([[1.0, 3.0], [4.0, jnp.inf]]), 2))
      [0.5 0. ]
    """
    ranks = _checked(ranks, n)
    return jnp.sum(ranks <= n, axis=1) / _right(ranks)


def average_recall(ranks: Array) -> Array:
    """Returns the mean of recall at 1, 2, 5, 10, 20 and 50: "avg recalls" in Table 2 of the RR paper.

    Examples:
      >>> print(metrics.average_recall(jnp.array([[1.0], [7.0]])))  # found at six and at three of the six cutoffs
      [1.  0.5]
    """
    return jnp.mean(jnp.stack([recall_at(ranks, n) for n in RECALLS]), axis=0)


def ndcg_at(ranks: Array, n: int = 10, gains: Array | None = None, judged: Array | None = None) -> Array:
    """Returns DCG / ideal DCG with linear gains (Järvelin and Kekäläinen 2002), the metric of trec_eval and BEIR.

    DCG is the sum of g_i / log2(1 + r_i) over r_i <= n, where g_i is the gain at rank r_i; the ideal DCG is that of the
    judged gains, highest first, at ranks 1, 2, ...

    Args:
      ranks: ranks of the right candidates [Q, P].
      n: cutoff.
      gains: gain at each rank [Q, P], as `endx_jax.metrics.ranked_gains` returns them; None: 1.
      judged: gains of the right candidates [Q, P] in any order, 0 where padded; None: `gains`. They differ only if
        right candidates with different gains are tied, which all have the mean in `gains`.

    Examples:
      >>> print(metrics.ndcg_at(jnp.array([[1.0], [3.0], [11.0]])))  # 1 / log2(1 + 3)
      [1.  0.5 0. ]
    """
    ranks = _checked(ranks, n)
    gains = jnp.isfinite(ranks).astype(ranks.dtype) if gains is None else jnp.asarray(gains)
    check_arrays({"gains": (gains, "[Q, P]")})
    best = -jnp.sort(-(gains if judged is None else jnp.asarray(judged)), axis=1)
    places = jnp.arange(1, ranks.shape[1] + 1, dtype=ranks.dtype)[None, :]
    return _dcg(ranks, gains, n) / _dcg(places, best, n)


def average_precision(ranks: Array) -> Array:
    """Returns average precision, (1 / |A*|) sum_i i / r_i, without a cutoff (Buckley and Voorhees 2000).

    Its mean over the questions is MAP.

    Examples:
      >>> print(metrics.average_precision(jnp.array([[1.0, 4.0], [4.0, jnp.inf]])))  # (1 / 1 + 2 / 4) / 2, 1 / 4
      [0.75 0.25]
    """
    ranks = _checked(ranks)
    places = jnp.arange(1, ranks.shape[1] + 1, dtype=ranks.dtype)[None, :]
    return jnp.sum(places / ranks, axis=1) / _right(ranks)


def _checked(ranks: Array, cutoff: int | None = None) -> Array:
    """Returns ranks as a JAX array; raises EndxError if their shape is not [Q, P] or the cutoff not positive."""
    ranks = jnp.asarray(ranks)
    check_arrays({"ranks": (ranks, "[Q, P]")})
    check_positive("cutoff", cutoff)
    return ranks if ranks.shape[1] else jnp.full((len(ranks), 1), jnp.inf)


def _right(ranks: Array) -> Array:
    return jnp.sum(jnp.isfinite(ranks), axis=1).astype(ranks.dtype)


def _dcg(ranks: Array, gains: Array, n: int) -> Array:
    return jnp.sum(jnp.where(ranks <= n, gains / jnp.log2(1 + ranks), 0), axis=1)
