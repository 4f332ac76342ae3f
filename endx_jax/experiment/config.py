"""The config tree, checked and turned into frozen settings."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from endx_jax import json_files
from endx_jax.data.settings import DataSettings
from endx_jax.errors import EndxError, nearest
from endx_jax.methods import METHODS, find_method
from endx_jax.parallel.mesh import MeshSettings
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.retrieval.evaluate import EvaluationSettings
from endx_jax.settings import check_section, from_mapping, results_only
from endx_jax.training.loop import TrainSettings
from endx_jax.training.optimizer import OptimizerSettings


@dataclasses.dataclass(frozen=True)
class UnknownSettings:
    """The settings of a method that this process does not know, read from the config of a finished run.

    Attributes:
      name: of the method.
      values: all of them.
    """

    name: str
    values: Mapping[str, Any]


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


def resolve(config: Mapping, *, finished: bool = False) -> Settings:
    """Checks a config tree (a ConfigDict or plain mapping) and returns it as settings.

    Args:
      config: the tree.
      finished: whether it is of a run that is only read: its method may then be unknown, as `UnknownSettings`.

    Raises:
      EndxError: for an unknown section, method or key, naming the nearest known one, and for values out of bounds.
    """
    method = _method_of(config)
    unknown = finished and method not in METHODS
    known: dict[str, type] = {
        "data": DataSettings,
        "model": ModelSettings,
        "objective": UnknownSettings if unknown else find_method(method).settings,
        "optimizer": OptimizerSettings,
        "train": TrainSettings,
        "mesh": MeshSettings,
        "evaluation": EvaluationSettings,
    }
    for name in config:
        if name != "seed" and name not in known:
            raise EndxError(f"unknown section {json_files.shown(name)} in the config{nearest(name, known)}")
    if unknown:
        config = {**config, "objective": {"name": method, "values": config["objective"]}}
    sections = {name: from_mapping(cls, config.get(name, {}), name) for name, cls in known.items()}
    seed = config.get("seed", 0)
    return Settings(seed=json_files.whole(seed, "seed", least=-(2**63), most=2**63 - 1), **sections)


def differences(before: Settings, now: Settings) -> list[str]:
    """Returns the settings that a resumed run must keep and does not: `key: before -> now`, in order."""
    old, new = results_only(before), results_only(now)
    return [f"{name}: {old.get(name)!r} -> {new.get(name)!r}" for name in old | new if old.get(name) != new.get(name)]


def _method_of(config: Mapping) -> str:
    """Returns the name of the method in a config."""
    section = config.get("objective", {})
    check_section(section, "objective")
    name = section.get("name", "dual")
    if not isinstance(name, str):
        raise EndxError(f"objective.name is {json_files.shown(name)}; it must be one of {', '.join(METHODS)}")
    return name
