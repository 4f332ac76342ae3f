import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache


@pytest.fixture(scope="package", autouse=True)
def no_compilation_cache():
    """Programs for devices that are not here are written to the suite's cache, and can't be read from it."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture
def effort():
    """Function that sets the TPU compiler's effort to save time of execution, from -1 to 1; 0 after the test.

    At -1 BERT-base compiles in a third of the CPU time. Programs are slower and take more memory than at 0.
    """
    name = "jax_exec_time_optimization_effort"  # JAX 0.12 no longer has it

    def set_effort(level: float) -> None:
        if name in jax.config.values:
            jax.config.update(name, level)

    yield set_effort
    set_effort(0.0)
