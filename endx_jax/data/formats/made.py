"""Data sets that a config file makes: those of its `DATA`, by their names, and `docstrings` of the quickstart."""

import pathlib
import runpy
from collections.abc import Callable, Mapping

from endx_jax.data.formats.format import Format, Place, ReadOptions
from endx_jax.data.formats.text_files import InvalidRows
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.errors import EndxError
from endx_jax.json_files import shown

Maker = Callable[[DataSettings], RetrievalSet]
MAKERS: dict[str, Maker] = {}
"""Functions that make data sets, by the name of the set in `data.path`."""

_PACKAGE = pathlib.Path(__file__).parents[2]
# Folder of the recipes, which a wheel has inside the package; and the recipe that makes a set, by the set's name.
RECIPES = _PACKAGE / "recipes" if (_PACKAGE / "recipes").is_dir() else _PACKAGE.parent / "configs"
RECIPE_OF = {"docstrings": "quickstart"}


def register_makers(makers: Mapping[str, Maker]) -> None:
    """Adds the functions that a config file defines as `DATA` to `MAKERS` in this process.

    Raises:
      EndxError: `makers` maps something else than names to functions.
    """
    if not isinstance(makers, Mapping) or not all(isinstance(name, str) and callable(makers[name]) for name in makers):
        raise EndxError(f"DATA in the config file is {shown(makers)}; it must map names for data.path to functions")
    MAKERS.update(makers)


def _records(place: Place, options: ReadOptions, invalid: InvalidRows) -> RetrievalSet:
    if place.path not in MAKERS:
        register_makers(runpy.run_path(str(RECIPES / f"{RECIPE_OF[place.path]}.py"))["DATA"])
    return MAKERS[place.path](options.settings)


MADE = Format("made", lambda place: place.path in (*MAKERS, *RECIPE_OF), records=_records)
