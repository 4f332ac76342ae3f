"""A dual encoder that learns from a pair classifier's scores: which pairs are scored, and who is trained."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import one_line_error, padded, texts
from tiny_bert import tiny_recipe

from endx_jax.batch import Batch
from endx_jax.data.token_tables import TokenTable
from endx_jax.experiment.model import best_params, read_model
from endx_jax.experiment.run import run
from endx_jax.losses import in_batch_softmax
from endx_jax.methods.endx.distill import DistillSettings, choose, join
from endx_jax.methods.pair import batches
from endx_jax.models.dropout import example_keys
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.parallel.execution import Execution
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.training.state import TrainState

B = 6
H = 1e-3  # step of a finite difference in float32
RNG, STEP = jax.random.key(2, impl="threefry2x32"), jnp.int32(0)


def test_a_questions_own_answer_comes_first_and_then_the_best():
    scores = jnp.array([[0.0, 3.0, 2.0, 1.0], [9.0, 0.0, 1.0, 2.0], [1.0, 2.0, 9.0, 3.0], [4.0, 3.0, 2.0, 1.0]])
    assert choose(scores, 2).tolist() == [[0, 1, 2], [1, 0, 3], [2, 3, 1], [3, 0, 1]]
    assert choose(scores, 0).tolist() == choose(scores, 3).tolist() == choose(scores, 99).tolist()


def test_padded_texts_are_joined_as_the_pair_methods_batches_are():
    lengths = np.array([3, 5, 2]), np.array([4, 2, 6])
    rows = [texts(of_side, seed=n) for n, of_side in enumerate(lengths)]
    tables = [TokenTable.from_lengths(np.concatenate(each), n, 0) for each, n in zip(rows, lengths, strict=True)]
    expected = batches.join(*tables, np.stack([np.arange(3)] * 2, axis=1)).pad(np.arange(3), 13)
    found = join(padded(rows[0], 6), padded(rows[1], 8))
    chex.assert_trees_all_equal(found, jax.tree.map(jnp.asarray, expected))


@pytest.fixture(scope="module")
def config(tiny_bert, pairs_csv, pair_workdir):
    config = tiny_recipe(tiny_bert, pairs_csv)
    config.model.update(encoder="gru", pooling="multi_hop", dropout=0.0)
    config.model.new_encoder.width = 8
    config.objective = dataclasses.asdict(DistillSettings(teacher_from=str(pair_workdir), candidates=3))
    config.train.steps = 2
    return config


@pytest.fixture(scope="module")
def workdir(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distilled")
    run(config, folder)
    return folder


@pytest.fixture(scope="module")
def taught(workdir):
    """The objective and parameters of the run, and a batch of six pairs."""
    model = read_model(workdir)
    params, _ = best_params(workdir, model, make_mesh(MeshSettings(), jax.local_devices()[:1]))
    draw = np.random.default_rng(0)
    answer_id = jnp.array([0, 1, 2, 3, 4, 0])
    batch = Batch(
        question=padded(texts(draw.integers(2, 7, B)), 6),
        answer=padded(texts(draw.integers(2, 9, B), seed=1), 8),
        question_id=jnp.arange(B),
        answer_id=answer_id,
        positive_ids=answer_id[:, None],
    )
    return model.objective, params, batch


def test_the_teacher_is_taken_and_stays_as_it_is(workdir, pair_workdir):
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    given, kept = (best_params(folder, read_model(folder), mesh)[0] for folder in (pair_workdir, workdir))
    chex.assert_trees_all_equal(kept["teacher"], given)
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    names = {"dual_loss", "cross_loss", "alignment", "dual_entropy", "cross_entropy", "cross_in_batch_accuracy"}
    assert names <= set(lines[0])
    assert 0 < lines[0]["cross_entropy"] <= np.log(4) + 1e-6


def test_the_loss_is_that_of_all_scores_computed_one_by_one(taught):
    objective, params, batch = taught
    settings = dataclasses.replace(objective.settings, candidates=0, cross_weight=0.25)
    objective = dataclasses.replace(objective, settings=settings)
    loss, metrics = jax.jit(objective)(params, batch, RNG, STEP)
    embedded = jax.jit(objective.embed)(params, (batch, example_keys(RNG, STEP, B)))

    @jax.jit
    def score(i, j):
        rows = [jax.tree.map(lambda x, n=n: x[n][None], side) for side, n in ((batch.question, i), (batch.answer, j))]
        return objective.teacher.classifier.score(
            params["teacher"]["dual_encoder"], params["teacher"]["pair"], join(*rows)
        )

    teacher = jnp.array([[score(i, j)[0] for j in range(B)] for i in range(B)])
    student = embedded.question @ embedded.answer.T / 0.05
    log_p, log_q = (jax.nn.log_softmax(x, axis=1) for x in (teacher, student))
    divergence = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=1).mean()
    np.testing.assert_allclose(metrics["alignment"], divergence, rtol=1e-4)
    np.testing.assert_allclose(metrics["cross_entropy"], -jnp.sum(jnp.exp(log_p) * log_p, axis=1).mean(), rtol=1e-4)
    ids = {"question_id": batch.question_id, "answer_id": batch.answer_id}
    dual, _ = in_batch_softmax(embedded.question, embedded.answer, temperature=0.05, **ids)
    # Pairs 0 and 5 have the same answer, which is no wrong one.
    wrong = jnp.where(
        jnp.equal(batch.answer_id[:, None], batch.answer_id[None]) & ~jnp.eye(B, dtype=bool), -jnp.inf, teacher
    )
    cross = -jnp.diag(jax.nn.log_softmax(wrong, axis=1)).mean()
    np.testing.assert_allclose(loss, 0.5 * dual + 0.25 * cross + 0.5 * divergence, rtol=1e-4)


def test_chunks_of_scores_equal_all_at_once(taught):
    """Value and gradients, with a teacher that is trained."""
    objective, params, batch = taught
    settings = dataclasses.replace(objective.settings, teacher_frozen=False, cross_weight=0.5)
    objective = dataclasses.replace(objective, settings=settings)
    chunked = objective.prepare(Execution(tower_chunk=4), steps_per_epoch=1.0)

    def compute(objective):
        return jax.jit(jax.value_and_grad(objective, has_aux=True))(params, batch, RNG, STEP)

    (expected, gradients), (found, of_chunks) = compute(objective), compute(chunked)
    chex.assert_trees_all_close(found, expected, rtol=2e-5)
    chex.assert_trees_all_close(of_chunks, gradients, atol=1e-5)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients["teacher"])) > 1e-4


def test_the_gradient_is_a_finite_difference_along_itself(taught):
    """Of the parameters of the student and of a teacher that is trained."""
    objective, params, batch = taught
    settings = dataclasses.replace(objective.settings, teacher_frozen=False, cross_weight=0.5, candidates=0)
    objective = dataclasses.replace(objective, settings=settings)
    compute = jax.jit(jax.value_and_grad(lambda params: objective(params, batch, RNG, STEP)[0]))
    gradient = compute(params)[1]
    norm = float(optax.tree.norm(gradient))
    ahead, behind = (compute(jax.tree.map(lambda x, g, e=e: x + e * g / norm, params, gradient))[0] for e in (H, -H))
    np.testing.assert_allclose((ahead - behind) / (2 * H), norm, rtol=0.01)


def test_a_frozen_teacher_has_no_optimizer_state(taught):
    objective, params, _ = taught
    state = TrainState.create(params, optax.adam(1e-3), objective.frozen)
    assert not [path for path in parameter_paths(state.opt_state) if "teacher/" in path]
    assert [path for path in parameter_paths(state.opt_state) if "dual_encoder/" in path]


def test_a_teacher_that_does_not_fit_is_refused(config, workdir, tmp_path, taught):
    objective, params, batch = taught
    for teacher_from, message in (
        ("", "needs a teacher: set objective.teacher_from"),
        (str(workdir), "holds no run of objective.name=pair"),
    ):
        config.objective.teacher_from = teacher_from
        with one_line_error(message):
            run(config, tmp_path / "other")
    long = dataclasses.replace(batch, question=padded(texts([3] * B), 60))
    with one_line_error("up to 67 tokens, more than the 64 positions of objective.teacher_from"):
        objective(params, long, RNG, STEP)
    with one_line_error("objective.candidates is -1; it must not be negative"):
        DistillSettings(candidates=-1)
    with one_line_error("objective.alignment_temperatures"):
        DistillSettings(alignment_temperatures=(0.05, 0.0))
