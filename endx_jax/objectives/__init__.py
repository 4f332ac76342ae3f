"""Methods: each an objective, (params, batch, rng, step) -> (loss, metrics)."""

from collections.abc import Mapping

from endx_jax.objectives.dual import DualObjective, DualSettings
from endx_jax.objectives.endx import EndxObjective, EndxSettings

# A method is added here: its settings (which name it in `objective.name`) and its objective.
OBJECTIVES: Mapping[str, tuple[type, type]] = {
    "dual": (DualSettings, DualObjective),
    "endx": (EndxSettings, EndxObjective),
}

__all__ = ["OBJECTIVES", "DualObjective", "DualSettings", "EndxObjective", "EndxSettings"]
