"""Dual encoder trained by the in-batch softmax (Dong et al. 2022)."""

from endx_jax.methods.dual.batches import ContrastiveCollator, contrastive_collator, embed_by_guide
from endx_jax.methods.dual.objective import DualObjective
from endx_jax.methods.dual.settings import DualSettings
from endx_jax.methods.method import Method

METHOD = Method("dual", DualSettings, DualObjective, collator=contrastive_collator, annotate=embed_by_guide)

__all__ = [
    "METHOD",
    "ContrastiveCollator",
    "DualObjective",
    "DualSettings",
    "contrastive_collator",
    "embed_by_guide",
]
