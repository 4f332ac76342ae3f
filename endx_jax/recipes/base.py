"""The config that every recipe starts from: each component's settings at their defaults.

A key is declared, with its unit and source, in the settings dataclass of the component that reads it; this tree is
their union for one method. Recipes change values, and so do command lines (`--config.train.steps=100`).
"""

import dataclasses

import ml_collections

from endx_jax.data.settings import DataSettings
from endx_jax.objectives import DualSettings
from endx_jax.parallel.mesh import MeshSettings
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.retrieval.settings import EvaluationSettings
from endx_jax.training.loop import TrainSettings
from endx_jax.training.optimizer import OptimizerSettings


def get_config(objective=None) -> ml_collections.ConfigDict:
    """The default config for a method, given as its settings; by default the dual encoder's."""
    sections = {
        "data": DataSettings(),
        "model": ModelSettings(),
        "objective": DualSettings() if objective is None else objective,
        "optimizer": OptimizerSettings(),
        "train": TrainSettings(),
        "mesh": MeshSettings(),
        "evaluation": EvaluationSettings(),
    }
    values = {name: dataclasses.asdict(section) for name, section in sections.items()}
    return ml_collections.ConfigDict({"seed": 0, **values})
