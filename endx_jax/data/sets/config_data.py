"""Data sets that are made by functions of config files."""

from collections.abc import Callable, Mapping

from endx_jax import json_files
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.errors import EndxError

Maker = Callable[[DataSettings], RetrievalSet]

MAKERS: dict[str, Maker] = {}
"""Functions that make data sets, by the name of the set in `data.path`."""


def register_makers(makers: Mapping[str, Maker]) -> None:
    """Adds the functions that a config file defines as `DATA` to `MAKERS` in this process.

    Raises:
      EndxError: `makers` maps something else than names to functions.
    """
    if not isinstance(makers, Mapping) or not all(isinstance(name, str) and callable(makers[name]) for name in makers):
        shown = json_files.shown(makers)
        raise EndxError(f"DATA in the config file is {shown}; it must map names for data.path to functions")
    MAKERS.update(makers)
