import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def one_device():
    """One device searches and encodes: eight would take most of the time, and are the subject of tests/ranking."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jax.local_devices", lambda: jax.devices()[:1])
        yield
