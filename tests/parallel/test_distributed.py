import pytest

from endx_jax.errors import EndxError
from endx_jax.parallel import distributed


def test_without_a_coordinator_nothing_is_set_up(monkeypatch):
    monkeypatch.delenv(distributed.COORDINATOR, raising=False)
    distributed.initialize()
    assert distributed.is_primary()


@pytest.mark.parametrize("count", [None, "two"])
def test_half_an_environment_is_refused(monkeypatch, count):
    monkeypatch.setenv(distributed.COORDINATOR, "localhost:1")
    monkeypatch.setenv(distributed.INDEX, "0")
    monkeypatch.delenv(distributed.COUNT, raising=False)
    if count:
        monkeypatch.setenv(distributed.COUNT, count)
    with pytest.raises(EndxError, match=f"{distributed.COUNT} and {distributed.INDEX}"):
        distributed.initialize()


def test_on_primary_runs_the_action():
    ran = []
    distributed.on_primary(lambda: ran.append(True), "test")
    assert ran == [True]
