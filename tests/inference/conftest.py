"""Models that several files encode with."""

import shutil

import pytest
from tiny_bert import write_usage
from tiny_models import make_model

import endx_jax


@pytest.fixture(scope="session")
def plain(tiny_bert):
    return endx_jax.load(tiny_bert)


@pytest.fixture(scope="session")
def prompted(tiny_bert, tmp_path_factory):
    """A model whose sides differ in their prompts, and one more prompt that is the default of neither."""
    folder = shutil.copytree(tiny_bert, tmp_path_factory.mktemp("prompted") / "model")
    prompts = {"query": "who: ", "document": "what: ", "cluster": "cat "}
    return endx_jax.load(write_usage(folder, prompts=prompts, truncate_dim=8))


@pytest.fixture(scope="session")
def model(tiny_bert):
    """A token table, whose programs are compiled fast."""
    return make_model(tiny_bert, encoder="none", question_length=64, answer_length=64)
