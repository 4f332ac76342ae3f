"""The default config and the recipes in `configs/`.

A key is declared, with its unit and source, in the settings dataclass of the component that reads it; a config is the
union of these for one method. Recipes and the command line (`--config.train.steps=100`) change the values.
"""

import dataclasses
import pathlib
import runpy
import types
from typing import Any

import ml_collections

from endx_jax.data.settings import DataSettings
from endx_jax.methods.dual import DualSettings
from endx_jax.parallel.mesh import MeshSettings
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.retrieval.evaluate import EvaluationSettings
from endx_jax.settings import check_choice
from endx_jax.training.loop import TrainSettings
from endx_jax.training.optimizer import OptimizerSettings


def base_config(objective: Any = None) -> ml_collections.ConfigDict:
    """Returns the default config for a method's settings; by default those of the dual encoder."""
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


def recipe_files() -> dict[str, pathlib.Path]:
    """Returns the recipe files by name, from `configs/` or, in a wheel, from `endx_jax/recipes/`."""
    package = pathlib.Path(__file__).parents[1]
    installed = package / "recipes"
    folder = installed if installed.is_dir() else package.parent / "configs"
    return {file.stem: file for file in sorted(folder.glob("*.py"))}


def load_recipe(name: str) -> types.SimpleNamespace:
    """Returns what the file of a recipe defines, such as its `get_config`.

    Raises:
      EndxError: for an unknown name, naming the nearest known one.
    """
    files = recipe_files()
    check_choice("the recipe", name, files)
    return types.SimpleNamespace(**runpy.run_path(str(files[name])))
