"""Ranks and ranking metrics, as pure functions of arrays."""

from endx_jax.metrics.ranking import (
    TIE_RULE,
    average_precision,
    average_recall,
    hit_at,
    ndcg_at,
    precision_at_1,
    ranked_gains,
    ranks,
    recall_at,
    reciprocal_rank,
)

__all__ = [
    "TIE_RULE",
    "average_precision",
    "average_recall",
    "hit_at",
    "ndcg_at",
    "precision_at_1",
    "ranked_gains",
    "ranks",
    "recall_at",
    "reciprocal_rank",
]
__dir__ = __all__.copy  # for tab completion
