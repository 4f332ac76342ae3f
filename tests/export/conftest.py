"""Tiny models of every kind."""

import numpy as np
import pytest
from helpers import Lazily
from tiny_models import embeddings, in_float32, make_model, write_tiny_t5

from endx_jax.export.towers import plain
from endx_jax.inference import EmbeddingModel

HALF = {"remat": "full", "dtype": "bfloat16"}


@pytest.fixture(scope="session")
def models(tiny_bert, tmp_path_factory) -> dict[str, EmbeddingModel]:
    """A model of each kind, by name; each is made when it is asked for."""
    prompts = {"question_prompt": "what is ", "answer_prompt": "a mat: "}
    hops = {"pooling": "multi_hop", "multi_hop": {"hops": 2, "width": 4}}
    settings = {
        "sde": {"answer_length": 32, "projection": 8, **HALF, **prompts},
        "ade": {"sharing": "ade", "projection": 8, "pooling": "first"},
        "ade_ste": {"sharing": "ade_ste", "normalize": False},
        "ade_spl": {"sharing": "ade_spl", "projection": 8, "answer_length": 40, **prompts},
        "t5": {"projection": 8},
        "gru": {"sharing": "ade", "encoder": "gru", "new_encoder": {"width": 8}, **hops},
    }

    def make(name):
        folder = write_tiny_t5(tmp_path_factory.mktemp("t5")) if name == "t5" else tiny_bert
        return make_model(folder, **settings[name])

    return Lazily(make)


@pytest.fixture(scope="session")
def expected(models) -> dict[str, dict[str, np.ndarray]]:
    """The embeddings of `TEXTS` by model and side; of half-precision models in float32."""
    return Lazily(lambda name: embeddings(in_float32(models["sde"]) if name == "sde" else models[name]))


@pytest.fixture(scope="session")
def export_with(models, tmp_path_factory):
    """Makes a dictionary of the folders of all models, by a format's `write`; each is written when it is asked for."""

    def make(write):
        def folder(name):
            made = tmp_path_factory.mktemp(name)
            write(made, plain(models[name]))
            return made

        return Lazily(folder)

    return make
