"""Dual-VAEs and Cross-VAEs, and their baseline Dual-GRUs (Yu et al. 2020)."""

from collections.abc import Mapping

from endx_jax.methods.dual import contrastive_collator, embed_by_guide
from endx_jax.methods.method import Method
from endx_jax.methods.vae.matching import MatchingObjective, MatchingSettings
from endx_jax.methods.vae.objective import VaeObjective, VaeSettings
from endx_jax.parallel.sharding import Rule

SHARDING = (
    # A decoder's scores of words are a part of the vocabulary each, as its token table's rows are.
    Rule(r"vocabulary_kernel", ("tensor", "fsdp")),
    Rule(r"vocabulary_bias", ("tensor",)),
    Rule(r"(deviation/\w+|decoder/\w+/(initial|reminder|hidden))/kernel", ("fsdp", None)),
    Rule(r"(deviation/\w+|decoder/\w+/(initial|reminder|hidden))/bias", (None,)),
)

# In nats a text: the posterior of a text that carries less tells it from fewer than three others.
COLLAPSED = 1.0


def collapsed(metrics: Mapping[str, float]) -> dict[str, str]:
    """Returns a warning for each posterior that has collapsed onto the prior.

    Args:
      metrics: of a step; `kl/SIDE` is the divergence of a side's posteriors from the prior, in nats a text.
    """
    return {
        name: f"the posterior of each {name.removeprefix('kl/')} has collapsed onto the prior: it carries "
        f"{divergence:.2g} nats; let beta rise more slowly (objective.anneal_steps or anneal_epochs), lower "
        "objective.kl_weight, or set objective.free_bits"
        for name, divergence in metrics.items()
        if name.startswith("kl/") and divergence < COLLAPSED
    }


METHOD = Method(
    "vae",
    VaeSettings,
    VaeObjective,
    collator=contrastive_collator,
    annotate=embed_by_guide,
    warnings=collapsed,
    sharding=SHARDING,
)

__all__ = ["METHOD", "MatchingObjective", "MatchingSettings", "VaeObjective", "VaeSettings"]
