"""Reader of the module list of a sentence-transformers folder, with Router modules resolved for each side."""

import pathlib
import re
from collections.abc import Mapping
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.config_keys import check_keys
from endx_jax.models.dual_encoder import TASKS

MODULES = "modules.json"
LIBRARY = "sentence_transformers."
PYLATE_DENSE = "pylate.models.Dense.Dense"  # the same as sentence-transformers', over tokens
# Config file of a Router, and of its predecessor Asym.
ROUTERS = ("router_config.json", "config.json")

# repr of a Python pair whose items are None or strings; the second may also be a tuple of strings.
PAIR = re.compile(r"""\((None|'[^']*'|"[^"]*"), *(None|'[^']*'|"[^"]*"|\([^()]*\))\)""")


class Module(NamedTuple):
    """A module of a sentence-transformers model.

    Attributes:
      kind: name of its class without the Python module, which differs between versions.
      folder: folder of its files, which may be missing.
    """

    kind: str
    folder: pathlib.Path


def read_modules(folder: pathlib.Path, side: str) -> list[Module]:
    """Returns the modules for texts of one side, `question` or `answer`, with each Router replaced by its route.

    Raises:
      EndxError: the module list is invalid, has a path outside the folder, or a Router has no route for the side.
    """
    routers: set[pathlib.Path] = set()
    return [each for kind, place in read_list(folder) for each in _expanded(kind, place, side, routers)]


def read_list(folder: pathlib.Path) -> list[Module]:
    """Returns the modules of `modules.json`, Routers included."""
    modules = []
    for number, entry in enumerate(json_files.read_json_file(folder / MODULES, list)):
        where = f"{folder / MODULES}, item {number}"
        kind = json_files.text_at(entry, "type", where)
        if kind.startswith(LIBRARY):  # modules of other code are refused later, whatever their keys
            check_keys(json_files.as_object(entry, where), where, {}, "idx name path type")
        place = json_files.inside(folder, json_files.value(entry, "path", where), f"{where}: 'path'")
        modules.append(Module(_name(kind), place))
    return modules


def _name(kind: str) -> str:
    """Returns the name of a sentence-transformers class, or the path of another class, whose code is not run."""
    return kind.rpartition(".")[2] if kind.startswith(LIBRARY) or kind == PYLATE_DENSE else kind


def _expanded(kind: str, folder: pathlib.Path, side: str, routers: set[pathlib.Path]) -> list[Module]:
    """Returns the modules of a Router's route, or the module itself; adds the Router's folder to `routers`."""
    if kind not in ("Router", "Asym"):
        return [Module(kind, folder)]
    file = next((folder / name for name in ROUTERS if (folder / name).is_file()), folder / ROUTERS[0])
    if folder.resolve() in routers:  # by itself without end, or by others, each of which may be named many times
        raise EndxError(f"{file} is named twice as a module, perhaps by itself; remove an entry")
    routers.add(folder.resolve())
    contents = json_files.read_json_file(file)
    check_keys(contents, file, {}, "types structure parameters")
    types, structure = (
        json_files.as_object(json_files.value(contents, key, str(file)), f"{file}: {key!r}")
        for key in ("types", "structure")
    )
    parameters = json_files.as_object(contents.get("parameters", {}), f"{file}: 'parameters'")
    check_keys(parameters, file, {}, "default_route allow_empty_key route_mappings")
    mappings = json_files.as_object(parameters.get("route_mappings") or {}, f"{file}: 'route_mappings'")
    route = _route(structure, mappings, TASKS[side], file)
    modules = []
    for name in json_files.as_list(json_files.value(structure, route, f"{file}: 'structure'"), f"{file}: {route!r}"):
        place = json_files.inside(folder, name, f"{file}: a module of {route!r}")
        kind = json_files.as_text(json_files.value(types, name, f"{file}: 'types'"), f"{file}: the type of {name!r}")
        modules += _expanded(_name(kind), place, side, routers)
    return modules


def _route(structure: Mapping, mappings: Mapping, task: str, file: pathlib.Path) -> str:
    """Returns the route for texts of a task, by sentence-transformers' order of precedence."""
    routes = {_pair(key, file): route for key, route in mappings.items()}
    for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
        if key in routes:
            return json_files.as_text(routes[key], f"{file}: the route of {key}")
    for route in (task, "text"):
        if route in structure:
            return route
    raise EndxError(f"{file} has no route for the task {task!r}; its routes are {json_files.format_names(structure)}")


def _pair(key: str, file: pathlib.Path) -> tuple[str | None, str | None]:
    """Returns task and modality of a key of `route_mappings`; several modalities remain one string."""
    match = PAIR.fullmatch(key)
    if match is None:
        raise EndxError(
            f"{file}: the key {json_files.shown(key)} of route_mappings is not a pair of a task and a modality"
        )
    task, modality = (None if name == "None" else name.strip("'\"") for name in match.groups())
    return task, modality
