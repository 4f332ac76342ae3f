"""Dual encoder trained by the in-batch softmax (Dong et al. 2022)."""

from endx_jax.methods.dual.batches import ContrastiveBatch, contrastive_batches, embed_by_guide, guide_of, loss_arrays
from endx_jax.methods.dual.objective import DualObjective
from endx_jax.methods.dual.settings import DualSettings
from endx_jax.methods.method import Method

METHOD = Method("dual", DualSettings, DualObjective, stream=contrastive_batches, annotate=embed_by_guide)

__all__ = [
    "METHOD",
    "ContrastiveBatch",
    "DualObjective",
    "DualSettings",
    "contrastive_batches",
    "embed_by_guide",
    "guide_of",
    "loss_arrays",
]
