"""A server for the clients of other projects, which the extra `outside` installs."""

import shutil

import pytest
from http_server import Running

from endx_jax import load
from endx_jax.experiment import workdir as workdirs
from endx_jax.inference import low_latency
from endx_jax.retrieval.index import Index
from endx_jax.retrieval.text_search import TextSearch
from endx_jax.serving.service import Service


@pytest.fixture(scope="module")
def served(trained_workdir, tmp_path_factory):
    """A server of the tiny trained model."""
    path = shutil.copy(trained_workdir / workdirs.INDEX, tmp_path_factory.mktemp("outside"))
    model = load(trained_workdir)
    with pytest.MonkeyPatch.context() as fewer_programs:
        fewer_programs.setitem(low_latency.PROGRAMS, "cpu", low_latency.Programs(rows=(4, 1), tokens=1024, call=24))
        running = Running(Service(model, TextSearch(Index(path), model.encode_query, model.encode_document)))
    yield running
    running.stop()
