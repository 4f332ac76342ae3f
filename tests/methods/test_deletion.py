"""A method's folder and its line in the dictionary can be deleted: the rest of the package works without them."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import endx_jax
from endx_jax.methods import METHODS

PACKAGE = pathlib.Path(endx_jax.__file__).parent
FOLDERS = sorted({module.split(".")[2] for module in METHODS.values() if isinstance(module, str)} - {"dual"})

# Imports every module, prints the help, and computes one step of the dual encoder.
PROGRAM = """
import importlib, pkgutil, sys
import jax, jax.numpy as jnp, optax
import endx_jax
assert endx_jax.__file__.startswith(sys.argv[1])
for module in pkgutil.walk_packages(endx_jax.__path__, "endx_jax."):
    if ".scripts" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)

from endx_jax.cli import train
train.main(["--help"])

from endx_jax.batch import Batch, Tokens
from endx_jax.methods import METHODS, find_method
from endx_jax.models import DualEncoder, TokenEmbedder, Tower
from endx_jax.models.static import NoEncoder
for name in METHODS:
    find_method(name)
method = find_method("dual")
tower = Tower(TokenEmbedder(12, 4), NoEncoder())
model = DualEncoder(tower, tower)
ids = jnp.arange(3)
texts = Tokens(jnp.arange(6).reshape(3, 2), jnp.ones((3, 2), bool))
batch = Batch(texts, texts, ids, ids, ids[:, None])
objective = method.objective(model, method.settings())
params = objective.init(jax.random.key(0), model.init(jax.random.key(0)))
compute = jax.value_and_grad(objective, has_aux=True)
(loss, _), gradients = compute(params, batch, jax.random.key(0, impl="threefry2x32"), jnp.int32(0))
assert loss > 0 and optax.tree.norm(gradients) > 0
"""


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rest_works_without_a_method(folder, tmp_path):
    copy = tmp_path / "endx_jax"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "methods" / folder)
    listing = copy / "methods" / "method.py"
    kept = re.sub(rf'    "\w+": "endx_jax.methods.{folder}[.\w]*",\n', "", listing.read_text())
    assert kept != listing.read_text()
    listing.write_text(kept)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "--config.objective.temperature" in done.stdout
