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
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = endx_jax.nothing


@pytest.mark.parametrize("package", [endx_jax.losses, endx_jax.metrics], ids=["losses", "metrics"])
def test_packages_of_functions_show_their_functions_and_no_modules(package):
    assert dir(package) == sorted(package.__all__)


# What completion shows, each verb's help and refused command lines, in a process in which nothing may import JAX.
WITHOUT_JAX = f"""
import sys, endx_jax
dir(endx_jax)
assert "endx_jax.losses" not in sys.modules
from endx_jax.cli.entry import run_verb
help_of = [[verb, "--help"] for verb in {sorted({*VERBS} - {"train"})}]  # train's help has the defaults of all settings
for arguments in [*help_of, ["check"], ["evaluate"], ["mine", "--data=x", "--output=y"], ["encode"]]:
    try:
        run_verb(arguments)
    except SystemExit:
        pass
    assert "jax" not in sys.modules, arguments
"""


def test_names_help_and_mistakes_do_not_import_jax():
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAX], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
