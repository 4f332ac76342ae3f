"""Residual heads on frozen text vectors, trained by triplets (RR, "Text Embeddings for Retrieval")."""

from endx_jax.methods.method import Method
from endx_jax.methods.residual.objective import ResidualObjective, ResidualSettings
from endx_jax.models.heads import HeadSettings, ResidualHeads

METHOD = Method(
    "residual",
    ResidualSettings,
    ResidualObjective,
    head=lambda settings, side, width: settings.head.of_side(side, width),
)

__all__ = ["METHOD", "HeadSettings", "ResidualHeads", "ResidualObjective", "ResidualSettings"]
