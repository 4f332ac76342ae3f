"""Conversion of a config tree to frozen settings."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from endx_jax import json_files
from endx_jax.data.settings import DataSettings
from endx_jax.methods import METHODS, find_method
from endx_jax.parallel.mesh import MeshSettings
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.ranking.evaluate import EvaluationSettings
from endx_jax.settings import check_choice, check_section, from_mapping, key, require, results_only
from endx_jax.training.loop import TrainSettings
from endx_jax.training.optimizer import OptimizerSettings

# Settings on which others usually depend. Messages about differing settings name these first, in this order.
DECISIVE = ("objective.name", "data.path", "model.pretrained", "model.init_from")
# Settings that are gone, by section; the configs of earlier runs still have them.
REMOVED = {"data": ("cloze_sentences", "cloze_removal")}


@dataclasses.dataclass(frozen=True)
class UnknownSettings:
    """Settings of an unknown method, read from the config of a finished run.

    Attributes:
      name: name of the method.
      values: settings by name.
    """

    name: str
    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a run."""

    seed: int = key(0, "Seed of the data order, of dropout and of new parameters.")
    data: DataSettings
    model: ModelSettings
    objective: Any
    optimizer: OptimizerSettings
    train: TrainSettings
    mesh: MeshSettings
    evaluation: EvaluationSettings

    def as_dict(self) -> dict:
        """Returns the settings as nested dictionaries, for config.json."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def resolve(config: Mapping, *, finished: bool = False) -> Settings:
    """Converts a config tree to settings.

    Args:
      config: ConfigDict or plain mapping.
      finished: true for the config of a finished run, whose method may be unknown (`UnknownSettings`).

    Raises:
      EndxError: a section, method or key is unknown, or a value is invalid.
    """
    method = _method_of(config)
    unknown = finished and method not in METHODS
    for name in config:
        check_choice("a section of the config", name, [field.name for field in dataclasses.fields(Settings)])
    if unknown:
        config = {**config, "objective": {"name": method, "values": config["objective"]}}
    for name, removed in REMOVED.items() if finished else ():
        check_section(config.get(name, {}), name)
        config = {**config, name: {key: value for key, value in config.get(name, {}).items() if key not in removed}}
    classes: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Settings) if field.name != "seed"}
    classes["objective"] = UnknownSettings if unknown else find_method(method).settings
    sections = {name: from_mapping(cls, config.get(name, {}), name) for name, cls in classes.items()}
    seed = config.get("seed", 0)
    return Settings(seed=json_files.as_whole(seed, "seed", least=0, most=2**63 - 1), **sections)


def agree_on_length(train: Any, overrides: Mapping[str, object]) -> None:
    """Sets `steps` of a section `train` to 0 if the user gives `train.epochs` in `overrides`, and conversely.

    Raises:
      EndxError: both are given.
    """
    steps, epochs = overrides.get("train.steps"), overrides.get("train.epochs")
    require(not (steps and epochs), f"train.steps={steps} and train.epochs={epochs}: give one of the two")
    train.update({"epochs": 0.0} if steps else {"steps": 0} if epochs else {})


def check_method(name: str, overrides: Mapping[str, object]) -> None:
    """Raises EndxError if the user gives another method in `overrides` than `name`, that of the other settings."""
    other = overrides.get("objective.name", name)
    require(
        other == name,
        f"objective.name={other}: the config has settings of {name}, which differ; take a config of {other} instead, "
        "as late:RECIPE for late",
    )


def config_changes(before: Settings, now: Settings) -> list[str]:
    """Returns the changed settings that affect results, as `key: before -> now`, those of `DECISIVE` first.

    Left out are settings that only one of two methods has, and those that one of the runs has yet to choose.
    """
    old, new = results_only(before), results_only(now)
    changed = [name for name in old if name in new and old[name] != new[name]]
    changed.sort(key=lambda name: (*DECISIVE, name).index(name))
    return [f"{name}: {old[name]!r} -> {new[name]!r}" for name in changed]


def _method_of(config: Mapping) -> str:
    """Returns the name of the method in a config."""
    section = config.get("objective", {})
    check_section(section, "objective")
    name = section.get("name", "dual")
    names = ", ".join(METHODS)
    require(isinstance(name, str), f"objective.name is {json_files.shown(name)}; it must be one of {names}")
    return name
