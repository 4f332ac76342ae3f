"""Training steps of all recipes at real size, compiled for TPUs and a GPU: what must not be in their programs."""

import pathlib

import pytest
from accelerator_programs import compiled_on, faults

from endx_jax.cli import train
from endx_jax.errors import EndxError

FILES = sorted((pathlib.Path(__file__).parents[2] / "configs").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["v5e:2x2", "h200:1"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_recipes(file, topology):
    config, *_ = train.parse([f"--config={file}"])
    try:
        subject, compiled = compiled_on(config, topology)
    except EndxError as error:
        if "is not installed" not in str(error):
            raise
        pytest.skip(str(error))
    assert faults(subject, compiled) == []
