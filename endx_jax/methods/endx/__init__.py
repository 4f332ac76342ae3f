"""ENDX: a dual encoder taught by a cross-encoder (Wang et al. 2021)."""

from endx_jax.methods.dual import contrastive_collator, embed_by_guide
from endx_jax.methods.endx.objective import EndxObjective, EndxSettings
from endx_jax.methods.method import Method

METHOD = Method("endx", EndxSettings, EndxObjective, collator=contrastive_collator, annotate=embed_by_guide)

__all__ = ["METHOD", "EndxObjective", "EndxSettings"]
