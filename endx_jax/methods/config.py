"""The default config, the recipes in `configs/`, and the files of users.

A key is declared, with its unit and source, in the settings dataclass of the component that reads it; a config is the
union of these for one method. Recipes and the command line (`--config.train.steps=100`) change the values.
"""

import dataclasses
import inspect
import pathlib
import runpy
import traceback
import types
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from endx_jax.data.formats.made import RECIPES, register_makers
from endx_jax.data.settings import DataSettings
from endx_jax.errors import EndxError, first_line, nearest
from endx_jax.json_files import shown
from endx_jax.methods.dual import DualSettings
from endx_jax.methods.method import register
from endx_jax.parallel.mesh import MeshSettings
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.ranking.evaluate import EvaluationSettings
from endx_jax.settings import check_choice
from endx_jax.training.loop import TrainSettings
from endx_jax.training.optimizer import OptimizerSettings


def base_config(objective: Any = None) -> ConfigDict:
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
    return ConfigDict({"seed": 0, **values})


def recipe_files() -> dict[str, pathlib.Path]:
    """Returns the recipe files by name, from `configs/` and `configs/papers/`; in a wheel they are in `recipes/`."""
    return {file.stem: file for file in sorted(RECIPES.rglob("*.py"), key=lambda file: file.stem)}


def load_recipe(name: str) -> types.SimpleNamespace:
    """Returns what the file of a recipe defines, such as its `get_config`.

    Raises:
      EndxError: for an unknown name, naming the nearest known one.
    """
    files = recipe_files()
    check_choice("the recipe", name, files)
    return types.SimpleNamespace(**runpy.run_path(str(files[name])))


def with_arguments(name: str) -> tuple[str, str, str]:
    """Returns the file or recipe of a config, a colon if there are arguments, and these; a path may contain colons."""
    whole, last = (name, "", ""), name.rpartition(":")
    return next((parts for parts in (whole, last) if pathlib.Path(parts[0]).is_file()), name.partition(":"))


def load_config(name: str) -> ConfigDict:
    """Returns the settings of a config, after registering what its file defines.

    A file can define a method as `METHOD`, and functions that make data sets as `DATA`: see `data.formats.made`.

    Args:
      name: a file or the name of a recipe; arguments of its `get_config` may follow after a colon, as in
        `t5:base,sde`. `configs/NAME.py` and `configs/papers/NAME.py` are the recipe NAME if there is no such file.

    Raises:
      EndxError: there is no such file, or it has a mistake.
    """
    file, colon, arguments = with_arguments(name)
    path = pathlib.Path(file)
    if not path.is_file():
        recipes = recipe_files()
        # Recipes moved to `configs/papers`, and an installed package has no `configs`.
        folders = {"configs", "configs/papers", str(RECIPES)}
        recipe = path.stem if path.suffix == ".py" and path.parent.as_posix() in folders else file
        if recipe not in recipes:
            problem = f"={name} is neither a file nor a recipe{nearest(recipe, recipes)}" if file else " is missing"
            raise EndxError(f"config{problem}; give a file, or one of the recipes {', '.join(recipes)}")
        file = str(recipes[recipe])
    get_config = None
    try:
        defined = runpy.run_path(file)
        get_config = defined.get("get_config")
        if not callable(get_config):
            raise EndxError(f"config={file} has no function get_config that returns the settings")
        config = get_config(*([arguments] if colon else []))
    except EndxError:
        raise
    except Exception as failure:
        places = [*traceback.extract_tb(failure.__traceback__), failure]  # a SyntaxError is a place too
        lines = [place.lineno for place in places if getattr(place, "filename", "") == file]
        where, kind = f"{file}, line {lines[-1]}" if lines else file, type(failure).__name__
        remedy = "correct the Python file"
        if not (get_config or file.endswith(".py")):
            remedy = "give data as data.path=FILE, and as config a Python file or the name of a recipe"
        elif get_config and (colon or not lines):
            remedy = f"what follows a colon after its name is passed to get_config{inspect.signature(get_config)}"
        reason = getattr(failure, "msg", first_line(failure))
        raise EndxError(f"config={where}: {kind}: {reason}; {remedy}") from failure
    if not isinstance(config, Mapping | ConfigDict):
        raise EndxError(f"config={file}: get_config returns {shown(config)}; it must return settings: base_config()")
    if defined.get("METHOD") is not None:
        register(defined["METHOD"])
    register_makers(defined.get("DATA", {}))
    return config if isinstance(config, ConfigDict) else ConfigDict(config)
