"""Modules of a sentence-transformers folder for the texts of one side, in order."""

import pathlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.dual_encoder import TASKS

MODULES = "modules.json"
# A Router's own file, and what it was called when a Router was an Asym.
ROUTERS = ("router_config.json", "config.json")

# As Python writes a pair: each None, a string, or for the second a tuple of strings.
PAIR = re.compile(r"""\((None|'[^']*'|"[^"]*"), *(None|'[^']*'|"[^"]*"|\([^()]*\))\)""")


class Module(NamedTuple):
    """Module of sentence-transformers.

    Attributes:
      kind: the name of its class, without the Python module, which differs between versions.
      folder: of its files, if it has any.
    """

    kind: str
    folder: pathlib.Path


def read_modules(folder: pathlib.Path, side: str) -> list[Module]:
    """Returns the modules for texts of one side, `question` or `answer`; a Router is replaced by those on its route.

    Raises:
      EndxError: a list of modules is broken or leads out of its folder, or a Router has no route for that side.
    """
    file, modules = folder / MODULES, list[Module]()
    for number, entry in enumerate(json_files.read(file, list)):
        kind, place = read_module(folder, entry, f"{file}, item {number}")
        modules += _expanded(kind, place, side, ())
    return modules


def read_module(folder: pathlib.Path, entry: object, where: str) -> Module:
    """Returns the module that an entry of `modules.json` describes.

    Raises:
      EndxError: the entry has no type or path, or a path out of the folder; `where` begins the message.
    """
    kind = json_files.text(json_files.value(entry, "type", where), f"{where}: 'type'")
    path = json_files.inside(folder, json_files.value(entry, "path", where), f"{where}: 'path'")
    return Module(kind.rpartition(".")[2], path)


def _expanded(kind: str, folder: pathlib.Path, side: str, routers: tuple[pathlib.Path, ...]) -> list[Module]:
    """Returns the module itself, or for a Router the modules on its route.

    Args:
      kind: of the module.
      folder: of the module.
      side: of the texts.
      routers: the folders of the enclosing Routers.

    Raises:
      EndxError: a Router is part of itself, or has no route for the side.
    """
    if kind not in ("Router", "Asym"):
        return [Module(kind, folder)]
    file = next((folder / name for name in ROUTERS if (folder / name).is_file()), folder / ROUTERS[0])
    routers = (*routers, folder.resolve())
    if routers.count(routers[-1]) > 1:
        raise EndxError(f"{file} names its own folder as a module, which would never end")
    contents = json_files.read(file)
    types, structure = (
        json_files.mapped(json_files.value(contents, key, str(file)), f"{file}: {key!r}")
        for key in ("types", "structure")
    )
    parameters = json_files.mapped(contents.get("parameters", {}), f"{file}: 'parameters'")
    mappings = json_files.mapped(parameters.get("route_mappings") or {}, f"{file}: 'route_mappings'")
    route = _route(structure, mappings, TASKS[side], file)
    modules = []
    for name in json_files.listed(json_files.value(structure, route, f"{file}: 'structure'"), f"{file}: {route!r}"):
        place = json_files.inside(folder, name, f"{file}: a module of {route!r}")
        kind = json_files.text(json_files.value(types, name, f"{file}: 'types'"), f"{file}: the type of {name!r}")
        modules += _expanded(kind.rpartition(".")[2], place, side, routers)
    return modules


def _route(structure: Mapping, mappings: Mapping, task: str, file: pathlib.Path) -> str:
    """Returns the name of the route for text of a task, in the search order of sentence-transformers."""
    routes = {_pair(key, file): route for key, route in mappings.items()}
    for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
        if key in routes:
            return json_files.text(routes[key], f"{file}: the route of {key}")
    if task not in structure:
        raise EndxError(f"{file} has no route for the task {task!r}; its routes are {json_files.names(structure)}")
    return task


def _pair(key: str, file: pathlib.Path) -> tuple[str | None, str | None]:
    """Returns the task and the modality in a key of `route_mappings`; several modalities are kept as written."""
    found = PAIR.fullmatch(key)
    if found is None:
        raise EndxError(
            f"{file} has {json_files.shown(key)} among its route_mappings, which is no pair of a task and a modality"
        )
    task, modality = (None if name == "None" else name.strip("'\"") for name in found.groups())
    return task, modality
