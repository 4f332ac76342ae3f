"""Losses: pure functions of arrays."""

from endx_jax.losses.contrastive import false_negative_mask, in_batch_softmax

__all__ = ["false_negative_mask", "in_batch_softmax"]
