"""Training steps of all recipes at real size, compiled for TPUs and a GPU: what must not be in their programs."""

import hashlib
import pathlib

import pytest
from accelerator_programs import faults, subject_on

from endx_jax.cli import train
from endx_jax.errors import EndxError
from endx_jax.planning.compiled import compile_step

FILES = sorted((pathlib.Path(__file__).parents[2] / "configs").glob("*.py"))
# Recipes without faults by topology and hash of their lowered programs.
PASSED: dict[tuple[str, bytes], str] = {}


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v5e:2x2", "h200:1"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_recipes(file, topology, effort):
    config, *_ = train.parse([f"--config={file}"])
    try:
        subject = subject_on(config, topology)
    except EndxError as error:
        if "is not installed" not in str(error):
            raise
        pytest.skip(str(error))
    program = topology, hashlib.sha256(subject.trace().lower().as_text("hlo").encode()).digest()
    if program in PASSED:
        pytest.skip(f"its program is that of {PASSED[program]}")
    effort(-1.0)
    assert faults(subject, compile_step(subject)) == []
    PASSED[program] = file.stem
