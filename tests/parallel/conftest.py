"""Variables of launchers and schedulers."""

import pytest

from endx_jax.parallel import environment

NAMES = ("COORDINATOR", "COUNT", "INDEX", "PORT", "SLURM_JOB", "SLURM_NODES", "SLURM_COUNT", "SLURM_INDEX")


@pytest.fixture
def variables(variables):
    """Sets variables, of processes by the names that the module has for them; those of processes are else unset."""

    none = {getattr(environment, name): None for name in NAMES}

    def put(**values):
        named = {getattr(environment, name) if name in NAMES else name: value for name, value in values.items()}
        variables(**none | named)

    put()
    return put
