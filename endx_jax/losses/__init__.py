"""Losses: pure functions of arrays."""

from endx_jax.losses.contrastive import in_batch_softmax, in_batch_softmax_and_metrics
from endx_jax.losses.false_negatives import false_negative_mask
from endx_jax.losses.geometry import embedding_regression, geometry_alignment

__all__ = [
    "embedding_regression",
    "false_negative_mask",
    "geometry_alignment",
    "in_batch_softmax",
    "in_batch_softmax_and_metrics",
]
