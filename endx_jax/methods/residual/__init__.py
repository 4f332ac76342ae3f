"""Residual heads on frozen text vectors, trained by triplets ("Text Embeddings for Retrieval", RR)."""

from endx_jax.methods.method import Method
from endx_jax.methods.residual.objective import ResidualObjective, ResidualSettings

METHOD = Method("residual", ResidualSettings, ResidualObjective)

__all__ = ["METHOD", "ResidualObjective", "ResidualSettings"]
