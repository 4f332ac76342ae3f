"""Variables of launchers and schedulers."""

import os

import pytest

from endx_jax.parallel import environment

NAMES = ("COORDINATOR", "COUNT", "INDEX", "PORT", "SLURM_JOB", "SLURM_NODES", "SLURM_COUNT", "SLURM_INDEX")


@pytest.fixture
def variables(monkeypatch):
    """Sets variables, of processes by the names that the module has for them; those of processes are else unset."""

    of_processes = {getattr(environment, name) for name in NAMES}
    others = {name: value for name, value in os.environ.items() if name not in of_processes}

    def put(**values):
        named = {getattr(environment, name) if name in NAMES else name: value for name, value in values.items()}
        monkeypatch.setattr(os, "environ", others | named)

    put()
    return put
