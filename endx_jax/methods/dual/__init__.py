"""Dual encoder trained by the in-batch softmax (Dong et al. 2022)."""

from endx_jax.methods.dual.objective import DualObjective, DualSettings
from endx_jax.methods.method import Method

METHOD = Method("dual", DualSettings, DualObjective)

__all__ = ["METHOD", "DualObjective", "DualSettings"]
