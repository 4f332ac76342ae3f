"""Models that several files encode with."""

import json
import shutil

import pytest
from tiny_models import make_model

import endx_jax


@pytest.fixture(scope="package")
def plain(tiny_bert):
    return endx_jax.load(tiny_bert)


@pytest.fixture(scope="package")
def prompted(tiny_bert, tmp_path_factory):
    """A model whose sides differ in their prompts, and one more prompt that is the default of neither."""
    folder = shutil.copytree(tiny_bert, tmp_path_factory.mktemp("prompted") / "model")
    usage = {"prompts": {"query": "who: ", "passage": "what: ", "cluster": "cat "}, "truncate_dim": 8}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(usage))
    return endx_jax.load(folder)


@pytest.fixture(scope="package")
def model(tiny_bert):
    """A token table, whose programs are compiled fast."""
    return make_model(tiny_bert, encoder="none", question_length=64, answer_length=64)
