"""Ranking metrics as functions of the ranks of right candidates.

Every function takes `ranks` [Q, P], NumPy or JAX: the ranks of each question's right candidates, ascending from 1 and
padded with inf, as `endx_jax.metrics.ranks` returns them. Every function returns one value in [0, 1] per question, [Q],
and raises EndxError for ranks of another shape or a cutoff that is not positive.

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
    return ranks


def _right(ranks: Array) -> Array:
    return jnp.sum(jnp.isfinite(ranks), axis=1).astype(ranks.dtype)


def _dcg(ranks: Array, gains: Array, n: int) -> Array:
    return jnp.sum(jnp.where(ranks <= n, gains / jnp.log2(1 + ranks), 0), axis=1)
