"""Residual heads on frozen text vectors, trained by triplets (RR, "Text Embeddings for Retrieval")."""

from endx_jax.methods.method import Method
from endx_jax.methods.residual.heads import SHARDING, HeadSettings, ResidualHeads
from endx_jax.methods.residual.objective import ResidualObjective, ResidualSettings


def residual_head(settings: ResidualSettings, side: str, width: int) -> ResidualHeads | None:
    """Returns the heads at the end of a side's tower, whose embeddings are [B, width]; None if the side has none."""
    return settings.head.of_side(side, width)


METHOD = Method(
    "residual", ResidualSettings, ResidualObjective, head=residual_head, frozen_towers=True, sharding=SHARDING
)

__all__ = ["METHOD", "HeadSettings", "ResidualHeads", "ResidualObjective", "ResidualSettings"]
