"""Layers of the package: every import, those inside functions too, goes to a lower layer."""

import ast
import functools
import graphlib
import pathlib
from collections.abc import Iterator

import pytest

import endx_jax

PACKAGE = pathlib.Path(endx_jax.__file__).parent

# From the bottom up. Groups of a layer (one string each) do not import each other; the modules of one group may.
LAYERS = (
    ("errors files buckets uploads hub json_files settings checks numerics batch",),
    ("losses", "metrics"),
    ("models", "data"),
    ("encoders",),
    ("pretrained", "parallel"),
    ("inference",),
    ("ranking",),
    ("index",),
    ("training",),
    ("methods",),
    ("experiment",),
    ("__init__",),
    ("export", "serving", "mteb", "planning"),
    ("cli main __main__",),
)
PLACES = {unit: (layer, group) for layer, groups in enumerate(LAYERS) for group in groups for unit in group.split()}

# Code below these packages takes frozen settings and no config object.
CONFIG_LIBRARY, MAY_IMPORT_CONFIG = "ml_collections", {"methods", "experiment", "cli"}

# Folders beside the package, which use it.
SCRIPTS = ("benchmarks", "configs", "examples", "reproduction", "tests")


def unit_of(file: pathlib.Path) -> str:
    """Returns the module or package right below `endx_jax` that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imports(source: str) -> list[tuple[int, str]]:
    """Returns line and dotted name of each import in `source`."""
    return [*_imports(source)]


def _imports(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            yield from ((node.lineno, name.value) for name in node.args if isinstance(name, ast.Constant))


def violations(unit: str, source: str) -> list[str]:
    """Returns a line for each wrong import of a module in `unit`."""
    if unit not in PLACES:
        return [f"it is in no layer: add {unit!r} to LAYERS in tests/test_layers.py, just above all that it imports"]
    (layer, group), found = PLACES[unit], []
    for line, name in imports(source):
        top, _, below = name.partition(".")
        if top == "":
            found.append(f"line {line}: a relative import; write it from endx_jax on")
        elif top == CONFIG_LIBRARY and unit not in MAY_IMPORT_CONFIG:
            found.append(f"line {line}: {name} may be imported in {', '.join(sorted(MAY_IMPORT_CONFIG))} only")
        elif top in SCRIPTS:
            found.append(f"line {line}: {name} is not in the package")
        elif top == "endx_jax":
            target = below.partition(".")[0]
            other_layer, other_group = PLACES.get(target, PLACES["__init__"])
            if other_group != group and other_layer >= layer:
                way = "up" if other_layer > layer else "sideways"
                found.append(f"line {line}: {name} is imported {way}, from layer {other_layer} to layer {layer}")
    return found


def lines_of(files, violations_of) -> str:
    """Returns a line for each violation in some files, each after the file's name."""
    found = [
        f"{file.relative_to(PACKAGE.parent)}: {violation}"
        for file in sorted(files)
        for violation in violations_of(file, file.read_text(encoding="utf-8"))
    ]
    return "\n".join(found)


def test_imports_go_down_only():
    files = [*PACKAGE.rglob("*.py")]
    assert len(files) > 50
    assert set(PLACES) <= {unit_of(file) for file in files}  # the table names only what is there
    assert not lines_of(files, lambda file, source: violations(unit_of(file), source))


def test_no_method_is_known_by_name_outside_methods():
    folders = {f"endx_jax.methods.{folder.name}." for folder in (PACKAGE / "methods").iterdir() if folder.is_dir()}
    assert "endx_jax.methods.dual." in folders

    def named(file, source):
        parts = file.relative_to(PACKAGE).parts
        own = {f"endx_jax.methods.{name}." for name in (parts[1], "dual")} if parts[0] == "methods" else set()
        if parts[-1] == "rerankers.py":  # it asks each kind of reranker of the method `pair`
            own = {"endx_jax.methods.pair."}
        return [one for one in imports(source) if f"{one[1]}.".startswith((*(folders - own),))]

    # So that a method's folder and its line in METHODS can be deleted.
    assert not lines_of(PACKAGE.rglob("*.py"), named)


# Folders of `data`, from the bottom up: formats are read into sets, and sets are drawn as batches.
DATA_FOLDERS = ("batches", "sets", "formats")


def test_the_folders_of_data_import_in_one_direction():
    for place, folder in enumerate(DATA_FOLDERS):
        above = tuple(f"endx_jax.data.{other}." for other in DATA_FOLDERS[place + 1 :])
        found = {name for file in (PACKAGE / "data" / folder).rglob("*.py") for _, name in imports(file.read_text())}
        assert "endx_jax.errors.EndxError" in found
        assert not [name for name in found if f"{name}.".startswith(above)], folder


def test_the_scripts_of_the_papers_use_public_names():
    def private(file, source):
        return [one for one in imports(source) if one[1].startswith("endx_jax.") and "._" in one[1]]

    assert not lines_of((PACKAGE.parent / "reproduction").rglob("*.py"), private)


def test_no_modules_import_each_other():
    files = [file for file in PACKAGE.rglob("*.py") if "scripts" not in file.parts]
    names = [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in files]
    sources = {n.removesuffix(".__init__"): f.read_text(encoding="utf-8") for n, f in zip(names, files, strict=True)}
    needs = {}
    for module, source in sources.items():
        names = [name.split(".") for _, name in imports(source)]
        parts = {".".join(name[:n]) for name in names for n in range(1, len(name) + 1)}
        needs[module] = {part for part in parts if part in sources and not f"{module}.".startswith(f"{part}.")}
    graphlib.TopologicalSorter(needs).prepare()  # raises where there is a circle


@pytest.mark.parametrize(
    ("unit", "source", "expected"),
    [
        ("losses", "def late():\n    from endx_jax import training", "line 2: endx_jax.training is imported up"),
        ("losses", "import importlib\nimportlib.import_module('endx_jax.methods')", "line 2: endx_jax.methods is"),
        ("export", "from endx_jax.serving import app", "sideways"),
        ("models", "from . import bert", "relative"),
        ("training", "from ml_collections import ConfigDict", "cli, experiment, methods only"),
        ("cli", "from reproduction.tables import papers", "reproduction.tables.papers is not in the package"),
        ("attic", "", "it is in no layer: add 'attic' to LAYERS"),
        ("models", "import jax\nfrom endx_jax import errors\nfrom endx_jax.models.layers import Norm", ""),
    ],
)
def test_violations_are_found_and_allowed_imports_pass(unit, source, expected):
    found = violations(unit, source)
    assert len(found) == bool(expected)
    assert expected in "".join(found)
