"""What a user installs: the wheel, its metadata, and the recipes inside."""

import email
import importlib
import os
import pathlib
import pkgutil
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

import endx_jax
from endx_jax.methods.config import recipe_files

ROOT = pathlib.Path(__file__).parents[1]
MODULES = sorted(module.name for module in pkgutil.walk_packages(endx_jax.__path__, "endx_jax."))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> pathlib.Path:
    """The wheel, built as pip builds it, from a copy: setuptools would leave its own files in the checkout."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("endx_jax", "tests", "configs", "reproduction"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta; build_meta.build_wheel('.')"
    built = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def files(wheel) -> dict[str, str]:
    """The contents of the wheel's files by name, those of `.dist-info` by their last part."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name).decode() for name in archive.namelist()}
    return {name.rpartition("/")[2] if ".dist-info/" in name else name: text for name, text in contents.items()}


@pytest.fixture(scope="session")
def metadata(files) -> email.message.Message:
    return email.message_from_string(files["METADATA"])


def test_the_wheel_holds_the_packages_their_version_and_command_and_nothing_else(files, wheel, metadata):
    package, papers = ROOT / "endx_jax", ROOT / "reproduction"
    kept = [*package.rglob("*.py"), package / "py.typed", *(package / "serving" / "page").iterdir()]
    kept += [*papers.rglob("*.py"), papers / "papers.toml"]
    folder = ROOT / "configs"
    recipes = {f"endx_jax/recipes/{file.relative_to(folder).as_posix()}" for file in folder.rglob("*.py")}
    assert {name for name in files if "/" in name} == {file.relative_to(ROOT).as_posix() for file in kept} | recipes
    assert {"endx_jax/serving/page/index.html", "endx_jax/recipes/t5_base_ade_spl.py"} <= set(files)
    assert metadata["Version"] == endx_jax.__version__
    assert wheel.name == f"endx_jax-{endx_jax.__version__}-py3-none-any.whl"
    assert files["entry_points.txt"].split("\n")[:2] == ["[console_scripts]", "endx = endx_jax.__main__:main"]


def test_lower_bounds_are_those_that_are_tested(metadata):
    wanted = map(Requirement, metadata.get_all("Requires-Dist"))
    wanted = [r for r in wanted if not r.marker or r.marker.evaluate({"extra": "test"})]
    tested = {
        requirement.name: requirement.specifier
        for line in (ROOT / ".ci" / "lower-bounds.txt").read_text().splitlines()
        if line and not line.startswith("#")
        for requirement in [Requirement(line)]
    }
    assert {r.name: str(r.specifier).replace(">=", "==") for r in wanted} == {k: str(v) for k, v in tested.items()}


@pytest.mark.parametrize("module", MODULES)
def test_every_module_imports(module):
    importlib.import_module(module)


@pytest.mark.slow
def test_the_wheel_runs_outside_the_checkout(wheel, tmp_path):
    pytest.importorskip("pip")
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", f"--target={site}", wheel]
    subprocess.run(install, check=True)

    def run(*arguments: str) -> str:
        environment = os.environ | {"PYTHONPATH": str(site)}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    assert pathlib.Path(run("-c", "import endx_jax; print(endx_jax.__file__)").strip()).is_relative_to(site)
    help_text = run("-m", "endx_jax", "train", "--config=t5_base_ade_spl", "--help")
    assert "--config.model.pretrained=google/t5-v1_1-base" in help_text
    assert "--config.model.encoder=gru" in run("-m", "endx_jax", "train", "--config=configs/yu.py", "--help")
    listed = run("-c", "from endx_jax.methods.config import recipe_files; print(*recipe_files())")
    assert listed.split() == list(recipe_files())
    assert run("-m", "endx_jax", "--version").strip() == endx_jax.__version__
    assert "endx-table2" in run("-m", "reproduction", "table")
