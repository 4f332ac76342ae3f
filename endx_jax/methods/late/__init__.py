"""Late interaction: an embedding for each token, scored by MaxSim (ColBERT, Khattab and Zaharia 2020)."""

from endx_jax.methods.dual import contrastive_collator, embed_by_guide
from endx_jax.methods.late.objective import LateObjective, LateSettings
from endx_jax.methods.method import Method

METHOD = Method("late", LateSettings, LateObjective, collator=contrastive_collator, annotate=embed_by_guide)

__all__ = ["METHOD", "LateObjective", "LateSettings"]
