"""A server for the clients of other projects, which the extra `outside` installs."""

import gc

import pytest
from http_server import Running, service_of


@pytest.fixture(scope="module")
def served(trained_workdir, tmp_path_factory):
    """A server of the tiny trained model."""
    running = Running(service_of(trained_workdir, tmp_path_factory.mktemp("outside")))
    yield running
    running.stop()
    gc.collect()  # clients leave sockets open; if collected after the last test, their warnings are errors
