"""What a teacher makes of questions, without training one."""

import dataclasses

import jax
import numpy as np
import pytest
from tiny_bert import tiny_recipe

from endx_jax.experiment.config import resolve
from endx_jax.experiment.model import build_model, save_description
from endx_jax.experiment.workdir import write_config
from endx_jax.methods.endx import EndxSettings
from reproduction.figures import Source, similarity

QUESTIONS = ["where is the cat", "who", "what is in the mat of the dog"]
ANSWERS = ["the mat", "a dog on the mat sat", "it"]


@pytest.fixture(scope="module")
def taught(tmp_path_factory, tiny_bert, pairs_csv):
    """The folder of a run of ENDX that was never trained, and parameters."""
    config = tiny_recipe(tiny_bert, pairs_csv)
    config.model.encoder, config.model.new_encoder = "gru", {"width": 8, "layers": 1}
    config.objective = dataclasses.asdict(EndxSettings(cross_heads=2))
    settings, folder = resolve(config), tmp_path_factory.mktemp("taught")
    model = build_model(settings)
    write_config(folder, model.settings, {"sha256": ""})
    save_description(folder, model)
    draw = np.random.default_rng(0)
    return folder, jax.tree.map(lambda p: draw.normal(0, 1, p.shape).astype(np.float32), model.abstract_params)


def test_a_teacher_sees_each_question_beside_its_own_answer(taught, monkeypatch):
    folder, params = taught
    monkeypatch.setattr(similarity, "best_params", lambda *_: (params, 0))
    monkeypatch.setattr(similarity, "TOGETHER", 2)
    source = Source("run", str(folder))
    every = similarity.teacher_embeddings(source, QUESTIONS, ANSWERS)
    assert every.shape == (3, 8)
    alone = similarity.teacher_embeddings(source, QUESTIONS[2:], ANSWERS[2:])
    np.testing.assert_allclose(every[2], alone[0], atol=1e-5)
    beside_another = similarity.teacher_embeddings(source, QUESTIONS[2:], ANSWERS[1:2])
    assert np.abs(beside_another - alone).max() > 1e-3


def test_runs_without_a_teacher_give_no_teacher_embeddings(trained_workdir):
    assert similarity.teacher_embeddings(Source("dual", str(trained_workdir)), QUESTIONS, ANSWERS) is None
    assert similarity.teacher_embeddings(Source("pretrained", "a-name"), QUESTIONS, ANSWERS) is None
