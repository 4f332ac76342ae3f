"""The config tree, checked and turned into frozen settings."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from endx_jax.data.settings import DataSettings
from endx_jax.errors import EndxError, nearest
from endx_jax.objectives import OBJECTIVES
from endx_jax.parallel.mesh import MeshSettings
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.retrieval.settings import EvaluationSettings
from endx_jax.settings import from_mapping, results_only
from endx_jax.training.loop import TrainSettings
from endx_jax.training.optimizer import OptimizerSettings


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that a run is made from."""

    seed: int
    data: DataSettings
    model: ModelSettings
    objective: Any
    optimizer: OptimizerSettings
    train: TrainSettings
    mesh: MeshSettings
    evaluation: EvaluationSettings

    def as_dict(self) -> dict:
        """Plain nested values, for config.json."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def resolve(config: Mapping) -> Settings:
    """Checks a config tree (a ConfigDict or plain mapping) and returns it as settings.

    Raises:
      EndxError: for an unknown section, method or key, naming the nearest known one, and for values out of bounds.
    """
    known = {
        "data": DataSettings,
        "model": ModelSettings,
        "objective": _objective_settings(config),
        "optimizer": OptimizerSettings,
        "train": TrainSettings,
        "mesh": MeshSettings,
        "evaluation": EvaluationSettings,
    }
    for name in config:
        if name != "seed" and name not in known:
            raise EndxError(f"unknown section {name!r} in the config{nearest(name, known)}")
    sections = {name: from_mapping(cls, config.get(name, {}), name) for name, cls in known.items()}
    return Settings(seed=int(config.get("seed", 0)), **sections)


def differences(before: Settings, now: Settings) -> list[str]:
    """What a resumed run must agree on and does not: `key: before -> now`, in order."""
    old, new = results_only(before), results_only(now)
    return [f"{name}: {old.get(name)!r} -> {new.get(name)!r}" for name in old | new if old.get(name) != new.get(name)]


def _objective_settings(config: Mapping) -> type:
    name = config.get("objective", {}).get("name", "dual")
    if name not in OBJECTIVES:
        raise EndxError(
            f"objective.name is {name!r}, which is none of {', '.join(OBJECTIVES)}{nearest(name, OBJECTIVES)}"
        )
    return OBJECTIVES[name][0]
