"""The modules of a sentence-transformers folder, in the order in which a text of one side goes through them."""

import pathlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from endx_jax.errors import EndxError
from endx_jax.models.dual_encoder import TASKS
from endx_jax.pretrained.json_files import read_json

MODULES = "modules.json"
# A Router's own file, and what it was called when a Router was an Asym.
ROUTERS = ("router_config.json", "config.json")

# As Python writes a pair: each None, a string, or for the second a tuple of strings.
PAIR = re.compile(r"""\((None|'[^']*'|"[^"]*"), *(None|'[^']*'|"[^"]*"|\([^()]*\))\)""")


class Module(NamedTuple):
    """One step.

    Attributes:
      kind: the name of its class; the Python module before it has changed with most versions.
      folder: of its files; there need not be any.
    """

    kind: str
    folder: pathlib.Path


def read_modules(folder: pathlib.Path, side: str) -> list[Module]:
    """The modules for texts of one side, `question` or `answer`; a Router stands for those on its route.

    Raises:
      EndxError: when a list of modules is broken or leads out of its folder, or a Router has no route for that side.
    """
    file, modules = folder / MODULES, []
    for entry in read_json(file, list):
        try:
            kind, path = entry["type"], entry["path"]
            modules += _expanded(kind.rpartition(".")[2], _within(folder, path, file), side)
        except (KeyError, TypeError, AttributeError):
            raise EndxError(f"{file} has a module without a type or a path: {entry!r}") from None
    return modules


def _expanded(kind: str, folder: pathlib.Path, side: str) -> list[Module]:
    if kind not in ("Router", "Asym"):
        return [Module(kind, folder)]
    file = next((folder / name for name in ROUTERS if (folder / name).is_file()), folder / ROUTERS[0])
    contents = read_json(file, dict)
    try:
        types, structure = contents["types"], contents["structure"]
        route = _route(structure, contents.get("parameters", {}).get("route_mappings") or {}, TASKS[side], file)
        return [
            module
            for name in structure[route]
            for module in _expanded(types[name].rpartition(".")[2], _within(folder, name, file), side)
        ]
    except (KeyError, TypeError, AttributeError) as failure:
        raise EndxError(f"{file} describes no routes of modules: {type(failure).__name__} at {failure}") from None


def _route(structure: Mapping, mappings: Mapping, task: str, file: pathlib.Path) -> str:
    """The name of the route for text of a task, found in the order of sentence-transformers."""
    routes = {_pair(key, file): route for key, route in mappings.items()}
    for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
        if key in routes:
            return routes[key]
    if task not in structure:
        raise EndxError(f"{file} has no route for the task {task!r}; its routes are {', '.join(structure)}")
    return task


def _pair(key: str, file: pathlib.Path) -> tuple[str | None, str | None]:
    """The task and the modality that a key of `route_mappings` names; of several modalities, what was written."""
    found = PAIR.fullmatch(key)
    if found is None:
        raise EndxError(f"{file} has {key[:60]!r} among its route_mappings, which is no pair of a task and a modality")
    task, modality = (None if name == "None" else name.strip("'\"") for name in found.groups())
    return task, modality


def _within(folder: pathlib.Path, path: str, file: pathlib.Path) -> pathlib.Path:
    """A path in `folder`, which a file that was downloaded must not lead out of."""
    if pathlib.PurePath(path).is_absolute() or ".." in pathlib.PurePath(path).parts:
        raise EndxError(f"{file} names {path!r}, which is not in its folder")
    return folder / path
