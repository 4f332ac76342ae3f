"""Ranking measures as functions of the ranks of the right candidates.

Every function takes `ranks` [Q, P], NumPy or JAX: for each question the ranks of its right candidates, ascending from 1
and padded with inf, as `endx_jax.metrics.ranks` returns them. Each returns one value in [0, 1] for each question, [Q].
Tied ranks may be fractional; a cutoff n keeps ranks <= n, so a tie across n is kept if its mean rank is at most n.

Every function raises EndxError for ranks of another shape, or a cutoff that is not positive.

For a question without right candidates recall, nDCG and average precision are nan (0/0), and reciprocal rank, hit and
precision are 0. `endx_jax.retrieval.evaluate` refuses such questions.

Below, A* is the set of right candidates of a question and r_1 < r_2 < ... are their ranks.
"""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_arrays, check_positive

Array = jax.Array

RECALLS = (1, 2, 5, 10, 20, 50)


def reciprocal_rank(ranks: Array, cutoff: int | None = None) -> Array:
    """Returns 1 / r_1, or 0 where r_1 > `cutoff`; its mean over questions is MRR (Voorhees 1999), or MRR@n."""
    best = _checked(ranks, cutoff)[:, 0]
    return 1 / best if cutoff is None else jnp.where(best <= cutoff, 1 / best, 0)


def hit_at(ranks: Array, n: int) -> Array:
    """Returns 1 if r_1 <= n, else 0: the hit rate, which the ReQA evaluation script calls R@n (Ahmad et al. 2019)."""
    ranks = _checked(ranks, n)
    return (ranks[:, 0] <= n).astype(ranks.dtype)


def precision_at_1(ranks: Array) -> Array:
    """Returns 1 if r_1 = 1, else 0: P@1 as in MultiReQA (Guo et al. 2020); equal to `hit_at(ranks, 1)`."""
    return hit_at(ranks, 1)


def recall_at(ranks: Array, n: int) -> Array:
    """Returns |top-n ∩ A*| / |A*| = #{i : r_i <= n} / |A*| (ENDX, Eq. 15)."""
    ranks = _checked(ranks, n)
    return jnp.sum(ranks <= n, axis=1) / _right(ranks)


def average_recall(ranks: Array) -> Array:
    """Returns the mean of recall at 1, 2, 5, 10, 20 and 50, the "avg recalls" of RR (Table 2)."""
    return jnp.mean(jnp.stack([recall_at(ranks, n) for n in RECALLS]), axis=0)


def ndcg_at(ranks: Array, n: int = 10) -> Array:
    """Returns DCG / ideal DCG with gains of 0 and 1 (Järvelin and Kekäläinen 2002; the measure of BEIR).

    DCG = sum over r_i <= n of 1 / log2(1 + r_i), where r_i may be fractional; the ideal DCG is that of ranks 1, 2, ...,
    min(n, |A*|).
    """
    ranks = _checked(ranks, n)
    places = jnp.arange(1, ranks.shape[1] + 1, dtype=ranks.dtype)[None, :]
    ideal = jnp.where(places <= _right(ranks)[:, None], places, jnp.inf)
    return _dcg(ranks, n) / _dcg(ideal, n)


def average_precision(ranks: Array) -> Array:
    """Returns (1 / |A*|) sum_i i / r_i, the mean precision at the right candidates; its mean over questions is MAP.

    Source: Buckley and Voorhees 2000. There is no cutoff.
    """
    ranks = _checked(ranks)
    found = jnp.arange(1, ranks.shape[1] + 1, dtype=ranks.dtype)[None, :]
    return jnp.sum(found / ranks, axis=1) / _right(ranks)


def _checked(ranks: Array, cutoff: int | None = None) -> Array:
    """Returns ranks [Q, P] as a JAX array; raises EndxError for another shape, or a cutoff that is not positive."""
    ranks = jnp.asarray(ranks)
    check_arrays({"ranks": (ranks, "[Q, P]")})
    check_positive("cutoff", cutoff)
    return ranks


def _right(ranks: Array) -> Array:
    return jnp.sum(jnp.isfinite(ranks), axis=1).astype(ranks.dtype)


def _dcg(ranks: Array, n: int) -> Array:
    return jnp.sum(jnp.where(ranks <= n, 1 / jnp.log2(1 + ranks), 0), axis=1)
