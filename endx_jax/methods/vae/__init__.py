"""Dual-VAEs and Cross-VAEs, and their baseline Dual-GRUs (Yu et al. 2020)."""

from endx_jax.methods.dual import contrastive_batches, embed_by_guide
from endx_jax.methods.method import Method
from endx_jax.methods.vae.matching import MatchingObjective, MatchingSettings
from endx_jax.methods.vae.objective import VaeObjective, VaeSettings
from endx_jax.methods.vae.report import check_decoders, collapsed
from endx_jax.parallel.sharding import Rule

SHARDING = (
    # A decoder's scores of words are a part of the vocabulary each, as its token table's rows are.
    Rule(r"vocabulary_kernel", ("tensor", "fsdp")),
    Rule(r"vocabulary_bias", ("tensor",)),
    Rule(r"(deviation/\w+|decoder/\w+/(initial|reminder|hidden))/kernel", ("fsdp", None)),
    Rule(r"(deviation/\w+|decoder/\w+/(initial|reminder|hidden))/bias", (None,)),
)

METHOD = Method(
    "vae",
    VaeSettings,
    VaeObjective,
    stream=contrastive_batches,
    annotate=embed_by_guide,
    section=check_decoders,
    warnings=collapsed,
    sharding=SHARDING,
)

__all__ = ["METHOD", "MatchingObjective", "MatchingSettings", "VaeObjective", "VaeSettings", "check_decoders"]
