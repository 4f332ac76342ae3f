"""Dual-VAEs and Cross-VAEs, and the Dual-GRUs that they are compared with (Yu et al. 2020)."""

from endx_jax.methods.method import Method
from endx_jax.methods.vae.matching import MatchingObjective, MatchingSettings
from endx_jax.methods.vae.objective import VaeObjective, VaeSettings
from endx_jax.methods.vae.report import check_decoders

METHOD = Method("vae", VaeSettings, VaeObjective, section=check_decoders)

__all__ = ["METHOD", "MatchingObjective", "MatchingSettings", "VaeObjective", "VaeSettings", "check_decoders"]
