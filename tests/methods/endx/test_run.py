"""ENDX end to end on tiny towers and tiny text: what is logged, what is reported, and what is left at inference."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import logged_steps, trained_params
from refusals import check_refusal
from tiny_bert import tiny_recipe

import endx_jax
from endx_jax.experiment.run import prepare_run, run
from endx_jax.experiment.saved_model import read_model
from endx_jax.experiment.train_plan import DENSE_UP_TO, loss_tile
from endx_jax.methods.dual.settings import ContrastiveSettings, DualSettings
from endx_jax.methods.endx import EndxSettings
from endx_jax.methods.endx.teacher import read_teacher
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.step import TrainState


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, tiny_bert, pairs_csv):
    """A run of four steps with losses in tiles."""
    config = tiny_recipe(tiny_bert, pairs_csv, encoder="none")
    config.model.pooling = "multi_hop"
    config.objective = dataclasses.asdict(
        EndxSettings(cross_heads=2, loss_tile=5, ramp_epochs=0.0, ramp_steps=4, weights=(("a|q", 0.5), ("q|q", 2.0)))
    )
    config.train.steps = 4
    config.evaluation.batch_size = 6  # which does not divide over the eight devices
    folder = tmp_path_factory.mktemp("endx")
    run(config, folder)
    return folder


def test_every_part_of_the_loss_is_logged(workdir):
    lines = logged_steps(workdir)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        weighted = [line[f"weighted_alignment/{term}"] for term in ("a|q", "q|q")]
        np.testing.assert_allclose(
            line["loss"], (line["dual_loss"] + line["cross_loss"]) / 4 + sum(weighted), rtol=1e-5
        )
        risen = min(1, line["step"] / 4)
        np.testing.assert_allclose(weighted[1], 0.5 * 2.0 * risen * line["alignment/q|q"], rtol=1e-5)
    assert 0 <= lines[0]["cross_in_batch_accuracy"] <= 1


def test_nothing_of_the_teacher_is_left_at_inference(workdir):
    model = read_model(workdir)
    params = trained_params(workdir)
    assert set(params) == {"dual_encoder", "teacher"}
    loaded = endx_jax.load(workdir)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(params["dual_encoder"])
    texts = ["where is the cat 3", "who"]
    encode = model.text_encoder(make_mesh(MeshSettings(), jax.local_devices()))
    expected = encode(params["dual_encoder"], "question", texts)
    np.testing.assert_allclose(loaded.encode_query(texts), expected, atol=1e-6)


@pytest.mark.slow
def test_a_teacher_of_another_run_is_taken_and_stays_as_it_is(workdir, tmp_path, config):
    config.model.pooling = "multi_hop"
    options = {"cross_heads": 2, "teacher_from": str(workdir), "teacher_frozen": True}
    config.objective = dataclasses.asdict(EndxSettings(**options))
    config.seed, config.train.steps = 1, 2
    run(config, tmp_path / "student")
    given, kept = map(trained_params, (workdir, tmp_path / "student"))
    chex.assert_trees_all_equal(kept["teacher"], given["teacher"])
    assert not np.allclose(*(jax.tree.leaves(params["dual_encoder"])[0] for params in (given, kept)))


def test_a_teacher_that_does_not_fit_is_refused(workdir, tmp_path):
    like = read_model(workdir).abstract_params["teacher"]
    halved = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), like)
    check_refusal(lambda: read_teacher(workdir, halved), "teacher/", "has another architecture")
    check_refusal(lambda: read_teacher(tmp_path, like), "objective.teacher_from=", "objective.name=endx")
    (tmp_path / "config.json").write_text('{"objective": {"name": "endx"}}')
    check_refusal(lambda: read_teacher(tmp_path, like), "objective.teacher_from=", "holds no checkpoint yet")
    broken = {"teacher": {"bias": jnp.array([1.0, jnp.nan])}}
    checkpoints = Checkpoints(tmp_path, keep=1, metric="mrr", report=print)
    checkpoints.save(1, TrainState.create(broken, optax.sgd(0.1)))
    checkpoints.close()
    check_refusal(lambda: read_teacher(tmp_path, {"bias": np.zeros(2, np.float32)}), "objective.teacher_from=")


def test_the_teacher_is_the_best_by_its_own_run_s_metric_in_a_folder_at_home(tmp_path, variables):
    variables(HOME=str(tmp_path.parent))
    config = {"objective": {"name": "endx"}, "evaluation": {"metric": "p@1"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoints = Checkpoints(tmp_path, keep=1, metric="p@1", report=print)
    for step, metrics in ((1, {"mrr": 0.1, "p@1": 0.9}), (2, {"mrr": 0.8, "p@1": 0.2})):
        params = {"teacher": {"bias": jnp.full(2, 1.0 * step)}}
        checkpoints.save(step, TrainState.create(params, optax.sgd(0.1)), metrics)
    checkpoints.close()
    found = read_teacher(f"~/{tmp_path.name}", {"bias": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(found["bias"], 1)


def test_epochs_are_counted_in_parts_of_batches(bert_config, tmp_path):
    found = prepare_run(bert_config, tmp_path)
    assert found.plan.objective.steps_per_epoch == len(found.plan.stream.pairs) / 16
    assert len(found.plan.stream.pairs) % 16


@pytest.mark.parametrize(
    ("setting", "batch", "expected"),
    [(-1, DENSE_UP_TO, None), (-1, DENSE_UP_TO + 1, 512), (-1, 16384, 256), (0, 65536, None), (256, 64, 256)],
)
def test_scores_are_tiled_where_the_batch_is_large(setting, batch, expected):
    assert loss_tile(setting, batch) == expected


def test_the_largest_dense_batch_is_smaller_for_several_arrays_of_scores():
    contrastive = ContrastiveSettings(same_side=("questions",))
    settings = DualSettings(direction="sum", matryoshka_dims=(4, 2), contrastive=contrastive)
    assert settings.score_arrays(hard_negatives=0) == 6
    assert settings.score_arrays(hard_negatives=5) == 16
    assert loss_tile(-1, DENSE_UP_TO // 4, 16) is None
    assert loss_tile(-1, DENSE_UP_TO // 4 + 1, 16) == 384
