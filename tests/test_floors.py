"""Imports go down only: every one in the package, those inside functions too, is held against the table of floors."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

import endx_jax

PACKAGE = pathlib.Path(endx_jax.__file__).parent

# From the ground up. A floor's rooms (quoted) do not import each other; the modules and packages of one room may.
FLOORS = (
    ("errors files settings numerics batch",),
    ("losses", "metrics"),
    ("models", "data"),
    ("pretrained", "parallel"),
    ("objectives", "retrieval"),
    ("training",),
    ("recipes", "experiment"),
    ("loading __init__",),
    ("export", "serving", "mteb", "analysis", "planning"),
    ("reproduction",),
    ("cli main __main__",),
)
PLACES = {unit: (floor, room) for floor, rooms in enumerate(FLOORS) for room in rooms for unit in room.split()}

# Config stops at the door: everything below takes frozen settings.
CONFIG_LIBRARY, MAY_IMPORT_CONFIG = "ml_collections", {"recipes", "experiment", "cli"}


def unit_of(file: pathlib.Path) -> str:
    """The module or package right below `endx_jax` that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported anywhere in `source`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def violations(unit: str, source: str) -> list[str]:
    """What is wrong with the imports of a module in `unit`, one line each."""
    if unit not in PLACES:
        return [f"it is on no floor: add {unit!r} to FLOORS in tests/test_floors.py, just above all that it imports"]
    (floor, room), found = PLACES[unit], []
    for line, name in imports(source):
        top, _, below = name.partition(".")
        if top == "":
            found.append(f"line {line}: a relative import; write it from endx_jax on")
        elif top == CONFIG_LIBRARY and unit not in MAY_IMPORT_CONFIG:
            found.append(f"line {line}: {name} may be imported in {', '.join(sorted(MAY_IMPORT_CONFIG))} only")
        elif top == "endx_jax":
            target = below.partition(".")[0]
            other_floor, other_room = PLACES.get(target, PLACES["__init__"])
            if other_room != room and other_floor >= floor:
                way = "up" if other_floor > floor else "sideways"
                found.append(f"line {line}: {name} is imported {way}, from floor {other_floor} to floor {floor}")
    return found


def test_imports_go_down_only():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 50
    found = [
        f"endx_jax/{file.relative_to(PACKAGE)}: {violation}"
        for file in files
        for violation in violations(unit_of(file), file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


def test_the_table_names_only_what_is_there():
    assert set(PLACES) <= {unit_of(file) for file in PACKAGE.rglob("*.py")}


@pytest.mark.parametrize(
    ("unit", "source", "expected"),
    [
        ("losses", "from endx_jax.models import BertEncoder", "up, from floor 2 to floor 1"),
        ("losses", "import endx_jax.training.loop", "up, from floor 5 to floor 1"),
        ("losses", "from endx_jax import training", "up, from floor 5 to floor 1"),
        ("losses", "from endx_jax import load", "up, from floor 7 to floor 1"),
        ("losses", "def late():\n    from endx_jax import data", "line 2"),
        ("models", "from endx_jax.data.records import RetrievalSet", "sideways"),
        ("experiment", "from endx_jax.recipes import base", "sideways"),
        ("models", "from . import bert", "relative"),
        ("training", "from ml_collections import ConfigDict", "cli, experiment, recipes only"),
        ("attic", "", "it is on no floor: add 'attic' to FLOORS"),
    ],
)
def test_violations_are_found(unit, source, expected):
    (found,) = violations(unit, source)
    assert expected in found


@pytest.mark.parametrize(
    ("unit", "source"),
    [
        ("training", "from endx_jax.data.batches import BatchStream\nfrom endx_jax.errors import EndxError"),
        ("models", "from endx_jax import errors"),
        ("models", "from endx_jax.models.bert import BertConfig"),
        ("settings", "from endx_jax.errors import EndxError"),
        ("cli", "import endx_jax"),
        ("recipes", "import ml_collections"),
        ("losses", "import jax\nfrom jax.experimental import multihost_utils"),
    ],
)
def test_what_is_allowed_passes(unit, source):
    assert violations(unit, source) == []
