"""Methods: each an objective, (params, batch, rng, step) -> (loss, metrics)."""

from collections.abc import Mapping

from endx_jax.objectives.dual import DualObjective, DualSettings
from endx_jax.objectives.endx import EndxObjective, EndxSettings
from endx_jax.objectives.matching import MatchingObjective, MatchingSettings
from endx_jax.objectives.pair import PairObjective, PairSettings
from endx_jax.objectives.triplet import TripletObjective, TripletSettings
from endx_jax.objectives.vae import VaeObjective, VaeSettings

# A method is added here: its settings (which name it in `objective.name`) and its objective.
OBJECTIVES: Mapping[str, tuple[type, type]] = {
    "dual": (DualSettings, DualObjective),
    "endx": (EndxSettings, EndxObjective),
    "matching": (MatchingSettings, MatchingObjective),
    "pair": (PairSettings, PairObjective),
    "triplet": (TripletSettings, TripletObjective),
    "vae": (VaeSettings, VaeObjective),
}

__all__ = [
    "OBJECTIVES",
    "DualObjective",
    "DualSettings",
    "EndxObjective",
    "EndxSettings",
    "MatchingObjective",
    "MatchingSettings",
    "PairObjective",
    "PairSettings",
    "TripletObjective",
    "TripletSettings",
    "VaeObjective",
    "VaeSettings",
]
