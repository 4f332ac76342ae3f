"""Variables of launchers and schedulers."""

import pytest

from endx_jax.parallel import environment

NAMES = ("COORDINATOR", "COUNT", "INDEX", "PORT", "SLURM_JOB", "SLURM_NODES", "SLURM_COUNT", "SLURM_INDEX")


@pytest.fixture
def variables(monkeypatch):
    """Sets variables, of processes by the names that the module has for them; those of processes are else unset."""

    def put(**values):
        for name in {getattr(environment, name) for name in NAMES}:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(getattr(environment, name) if name in NAMES else name, value)

    put()
    return put
