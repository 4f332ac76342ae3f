"""Servers over the tiny trained model and its index."""

import threading

import pytest
from helpers import Instead
from http_server import Running, service_of

from endx_jax.serving.settings import ServingSettings


@pytest.fixture(scope="session")
def service(trained_workdir, tmp_path_factory):
    """The tiny trained model and a copy of its index, which tests may change; it prepares for eight questions."""
    with pytest.MonkeyPatch.context() as fewer_programs:
        fewer_programs.setattr("endx_jax.serving.service.QUESTIONS", (1, 8))
        yield service_of(trained_workdir, tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def served(service):
    """A server as it is by default."""
    running = Running(service)
    yield running
    running.stop()


@pytest.fixture
def serve(service):
    """Starts servers of one's own: settings, or another service, as `Running` takes them."""
    started = []

    def start(settings=ServingSettings(), service=service, **more):  # noqa: B008
        started.append(Running(service, settings, **more))
        return started[-1]

    yield start
    for running in started:
        running.stop()


class Gated(Instead):
    """A service whose batches wait until they are let through.

    Attributes:
      batches: the works of each that began.
      gate: an event.
    """

    def __init__(self, service):
        super().__init__(service, batches=[], gate=threading.Event(), preparations=list, later_preparations=list)

    def run(self, works):
        self.batches.append(works)
        assert self.gate.wait(20)
        return self._original.run(works)


@pytest.fixture
def gated(service):
    made = Gated(service)
    yield made
    made.gate.set()
