"""The names that the package shows: what completion at a prompt offers, and what importing it loads."""

import subprocess
import sys

import pytest

import endx_jax
from endx_jax.cli.entry import VERBS


def test_the_package_shows_its_public_names_and_no_imports():
    assert dir(endx_jax) == sorted(endx_jax.__all__)
    assert {"load", "losses", "metrics", "__version__"} <= set(dir(endx_jax))
    assert {"os", "importlib", "TYPE_CHECKING"}.isdisjoint(dir(endx_jax))
    assert not hasattr(endx_jax, "os")
    assert all(hasattr(endx_jax, name) for name in endx_jax.__all__)
    assert all(hasattr(package, name) for package in (endx_jax.losses, endx_jax.metrics) for name in package.__all__)


@pytest.mark.parametrize("package", [endx_jax.losses, endx_jax.metrics], ids=["losses", "metrics"])
def test_packages_of_functions_show_their_functions_and_no_modules(package):
    assert dir(package) == sorted(package.__all__)


@pytest.mark.parametrize("verb", sorted({*VERBS} - {"train"}))  # whose help has the defaults of all settings
def test_the_help_of_a_verb_does_not_import_jax(verb):
    begin = f"import sys\nfrom endx_jax.cli.{verb} import main\n"
    code = begin + "try:\n  main(['--help'])\nfinally:\n  assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True).returncode == 0


@pytest.mark.parametrize("arguments", [["check"], ["evaluate"], ["mine", "--data=x", "--output=y"], ["encode"]])
def test_mistakes_do_not_import_jax(arguments):
    code = f"import sys\nfrom endx_jax.cli.entry import run_verb\ntry: run_verb({arguments})\nexcept SystemExit: pass\n"
    run = subprocess.run([sys.executable, "-c", code + "assert 'jax' not in sys.modules"], timeout=60)
    assert run.returncode == 0


def test_showing_names_loads_nothing():
    code = "import sys, endx_jax; dir(endx_jax); sys.exit(any(m in sys.modules for m in ('jax', 'endx_jax.losses')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
