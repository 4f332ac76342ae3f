"""What the batches of a contrastive loss hold beside texts, and a run that uses all of it."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers import logged_steps
from tiny_bert import write_tiny_bert

import endx_jax
from endx_jax.data.batches.collator import BatchStream, Pairs
from endx_jax.data.batches.ragged import Ragged
from endx_jax.data.batches.sampler import sampler_options
from endx_jax.data.batches.token_tables import VectorTable
from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.experiment.config import resolve
from endx_jax.experiment.run import run
from endx_jax.methods.config import base_config
from endx_jax.methods.dual import ContrastiveCollator, DualSettings, batches, contrastive_collator
from endx_jax.methods.dual.batches import embed_by_guide
from endx_jax.methods.dual.settings import ContrastiveSettings, DistillationSettings
from endx_jax.methods.evaluation import EmbeddingEvaluator
from endx_jax.methods.objective import loss_arrays
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.ranking.evaluate import EvaluationSettings
from endx_jax.ranking.results import Results


def pairs(**changes) -> Pairs:
    """Five pairs of five questions; answer 0 is right for the first three, answer 3 for none."""
    index = np.array([[0, 0], [1, 0], [2, 0], [3, 1], [4, 2]], np.int32)
    questions, answers = (VectorTable(np.zeros((count, 2), np.float32)) for count in (5, 4))
    hard_negatives = Ragged.from_rows([[3], [1], [], [0], [3]])
    made = Pairs(questions, answers, index, Ragged.from_array(index[:, 1:]), hard_negatives, None, 0, 0)
    return dataclasses.replace(made, **changes)


def first_batch(data: Pairs, settings: DualSettings, hard_negatives: int = 1):
    collator = contrastive_collator(data, settings, hard_negatives=hard_negatives)
    return BatchStream(data, collator, seed=0, global_batch_size=5, hard_negatives=hard_negatives)[0]


def batch(data: Pairs, **settings):
    return first_batch(data, DualSettings(contrastive=ContrastiveSettings(**settings)))


def test_frequencies_are_over_the_mean():
    """Three of five pairs have answer 0; the mean of the three answers with pairs is 5 / 3."""
    found = batch(pairs(), answer_frequencies=True)
    counts = np.array([3, 1, 1])[found.answer_id]
    np.testing.assert_allclose(found.extra["log_q"], np.log(counts / (5 / 3)), rtol=1e-6)
    plain = BatchStream(pairs(), seed=0, global_batch_size=5, hard_negatives=1)[0]
    assert set(loss_arrays(found)) == {*loss_arrays(plain), "log_q"}
    assert jax.tree.structure(batch(pairs())) == jax.tree.structure(plain)  # without either


def test_scores_of_a_teacher_are_those_of_the_batch_s_pairs():
    wrong = Ragged.from_rows([[10], [11], [], [13], [14]], np.float32, np.nan)
    scored = pairs(scores=(Ragged.from_array(np.arange(5.0)[:, None]), wrong))
    settings = DualSettings(distillation=DistillationSettings(loss="margin_mse"))
    found = first_batch(scored, settings)
    expected = np.where(found.question_id == 2, np.nan, 10 + found.question_id)  # question 2 has no hard negative
    np.testing.assert_array_equal(found.extra["teacher"], np.stack([found.question_id, expected], axis=1))


@pytest.mark.slow
def test_a_run_with_everything_at_once(tmp_path, bert_config):
    bert_config.data.cache = str(tmp_path / "cache")
    bert_config.train.steps = 2
    guide = str(write_tiny_bert(tmp_path / "guide"))
    contrastive = ContrastiveSettings(ceiling=(1.0, 0.05), guide=guide, answer_frequencies=True)
    settings = DualSettings(matryoshka_dims=(8, 4), matryoshka_weights=(1.0, 0.5), contrastive=contrastive)
    bert_config.objective = dataclasses.asdict(settings)
    run(bert_config, tmp_path / "run")
    for line in logged_steps(tmp_path / "run"):
        prefixes = [line[f"prefix_loss/{width}"] for width in (4, 8)]
        np.testing.assert_allclose(line["loss"], np.dot((0.5, 1), prefixes), rtol=1e-5)
        assert 0.1 < line["masked_fraction"] < 1
    systems = json.loads((tmp_path / "run" / "results.json").read_text())["systems"]
    models = {f"{name}{at}" for name in ("untrained", "trained") for at in ("", "@8", "@4")}
    assert {*systems} == {"bm25", "hybrid", "untrained hybrid", *models}
    assert systems["trained"] != systems["trained@4"]
    widths = [np.load(file).shape[1] for file in (tmp_path / "cache").glob("vectors-*.npy")]
    assert widths == [endx_jax.load(guide).width] * 2  # the guide's embeddings are computed once


@pytest.mark.parametrize(("steps", "count"), [(2, 4), (3, 5)])
def test_a_guide_embeds_only_the_texts_that_the_steps_draw(monkeypatch, steps, count):
    config = base_config(DualSettings(contrastive=ContrastiveSettings(guide="a guide")))
    config.train.update(global_batch_size=2, steps=steps, epochs=0.0)
    config.data.update(hard_negatives=1, cache="")
    seen = {"question": [], "answer": []}

    def comparable(side, texts):
        seen[side] += texts
        return np.array([[float(text)] for text in texts])

    guide = SimpleNamespace(name="a guide", identity="it", width=1, comparable=comparable)
    monkeypatch.setattr(batches, "load", lambda name, mesh: guide)
    qrels = ((0,), (0,), (0,), (1,), (2,))
    records = RetrievalSet(tuple("01234"), tuple("0123"), qrels, tuple("01234"), tuple("0123"))
    found = embed_by_guide(pairs(), records, resolve(config), make_mesh(MeshSettings()))
    # The run of the guide has the batches of the run: every embedding is the number that its text is.
    stream = BatchStream(found, ContrastiveCollator(found), **sampler_options(resolve(config)))
    drawn = {"question": set(), "answer": set()}
    for step in range(steps):
        made = stream[step]
        given = made.hard_negative_ids >= 0
        assert loss_arrays(made)["guide"] is made.extra["guide"]
        np.testing.assert_array_equal(made.extra["guide"].question[:, 0], made.question_id)
        np.testing.assert_array_equal(made.extra["guide"].answer[:, 0], made.answer_id)
        np.testing.assert_array_equal(made.extra["guide"].hard_negatives[..., 0][given], made.hard_negative_ids[given])
        drawn["question"] |= {*made.question_id.tolist()}
        drawn["answer"] |= {*made.answer_id.tolist(), *made.hard_negative_ids[given].tolist()}
    assert len(seen["question"]) == count  # of five; from an epoch on, all
    if steps == 2:
        assert {side: sorted(map(int, texts)) for side, texts in seen.items()} == {s: sorted(drawn[s]) for s in drawn}
    np.testing.assert_array_equal(found.guide["question"][np.array([4])].shape, (1, 1))  # any row has a shape


def test_prefixes_of_embeddings_are_truncated_and_normalised():
    """Whole, the second candidate is nearer to the question; by its first two numbers the first one is."""
    vectors = {"question": np.array([[1.0, 0, 1]]), "answer": np.array([[1.0, 0, 0], [1, 1, 2]])}
    records = RetrievalSet(("q",), ("a", "b"), ((0,),), ("q0",), ("d0", "d1"))
    results = Results("data", "test", Pools({"all": records}))
    encode = lambda params, side, texts, progress: vectors[side]  # noqa: E731
    evaluator = EmbeddingEvaluator(encode, EvaluationSettings(), (2, 3), True)
    evaluator.report(results, {"dual_encoder": {}}, None)
    found = {system: evaluation.metrics["mrr"] for system, evaluation in results.evaluations["all"].items()}
    assert found == {"trained": 0.5, "trained@2": 1.0}
