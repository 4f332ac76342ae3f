"""Shared state that runs read: processes that see other files than the primary do what it does, or say so.

docs/faults.md lists these cases. Process 0 sees the folder `now`, process 1 an earlier state of it.
"""

import dataclasses
import json
import shutil
import types

import numpy as np
import pytest
from fake_buckets import BUCKET, clients_of, gcs_server
from helpers import logged_losses
from several_processes import as_processes, finish, start_all, systems_and_losses

from endx_jax import buckets
from endx_jax.data.sources import read_splits
from endx_jax.errors import EndxError
from endx_jax.experiment import run as runs
from endx_jax.experiment.config import resolve
from endx_jax.experiment.workdir import Workdir, check_agrees, read_config
from endx_jax.inference.vector_cache import VectorCache
from endx_jax.training import checkpoints
from endx_jax.training.checkpoints import best_checkpoint, newest_step, restore_params
from endx_jax.training.hooks import EarlyStopping


@pytest.fixture
def seen(tmp_path, trained_workdir):
    """The workdir of a finished run as two processes see it; process 1 lacks the last checkpoint and the results."""
    folders = [tmp_path / "now", tmp_path / "earlier"]
    for folder in folders:
        shutil.copytree(trained_workdir, folder)
    last = newest_step(folders[1])
    (folders[1] / checkpoints.FOLDER / str(last) / checkpoints.HASHES).unlink()
    (folders[1] / "results.json").unlink()
    return folders


def finished(workdir, data=None):
    """What `run` asks at first; it would go on with collectives, in which threads can't take part."""
    settings = resolve(json.loads((workdir / "config.json").read_text()))
    model = types.SimpleNamespace(method=types.SimpleNamespace(embeds=True))
    data = data or read_splits(settings.data)
    run = types.SimpleNamespace(workdir=Workdir(workdir), settings=settings, model=model, data=data, sets={})
    return runs._is_finished(run)


def at_step_6(workdir):
    return EarlyStopping("mrr", patience=1, every=2, best=(newest_step(workdir), 0.5)).stops_at(6)


def latest_step(workdir):
    return checkpoints.Checkpoints.latest_step.fget(types.SimpleNamespace(workdir=workdir))


def best_by_mrr(workdir):
    return best_checkpoint(workdir, "mrr")


DECISIONS = {"best checkpoint": best_by_mrr, "step to resume at": latest_step}
DECISIONS |= {"finished": finished, "early stopping": at_step_6}


@pytest.mark.parametrize("name", DECISIONS)
def test_the_primary_decides(seen, monkeypatch, name):
    decide = DECISIONS[name]
    alone = [decide(folder) for folder in seen]
    assert alone[0] != alone[1]
    assert as_processes(monkeypatch, lambda process: decide(seen[process])) == [alone[0]] * 2


def test_a_run_is_not_finished_if_what_it_ranks_or_indexes_has_changed(trained_workdir):
    whole = read_splits(read_config(trained_workdir).data)
    assert finished(trained_workdir, whole)
    for name, part in vars(whole).items():
        none = ({},) * len(part.questions)
        changes = {"grades": none, "excluded": none}
        changes |= {column: getattr(part, column)[::-1] for column in ("candidates", "question_ids", "candidate_ids")}
        for column, values in changes.items():
            changed = dataclasses.replace(whole, **{name: dataclasses.replace(part, **{column: values})})
            assert not finished(trained_workdir, changed), (name, column)


def test_the_settings_in_a_workdir_are_checked_by_the_primary(seen, config, monkeypatch):
    (seen[1] / "config.json").unlink()
    config.optimizer.learning_rate = 1.0
    settings = resolve(config)
    errors = as_processes(monkeypatch, lambda process: check_agrees(Workdir(seen[process]), settings, ""))
    assert [type(error) for error in errors] == [EndxError] * 2
    assert all("holds a run with other settings" in str(error) for error in errors)


def test_the_hashes_of_a_checkpoint_are_checked_by_the_primary(seen, monkeypatch):
    step = newest_step(seen[1])
    shutil.rmtree(seen[0] / checkpoints.FOLDER / str(step) / "params")
    errors = as_processes(monkeypatch, lambda process: restore_params(seen[process], step, {}))
    assert all("is damaged" in str(error) for error in errors), errors


def test_a_process_that_cannot_cache_computes_what_the_others_compute(tmp_path, monkeypatch):
    """One whose disk is full after the first block takes part in the collectives of the second one."""
    folders, computed = [tmp_path / "writable", tmp_path / "file" / "cache"], [0, 0]
    (tmp_path / "file").touch()

    def vectors(process):
        def encode(texts):
            computed[process] += 1
            return np.full((len(texts), 3), ord(texts[0]), np.float32)

        return VectorCache(folders[process]).embeddings(encode, [*"abcd"], ("key",), 3, name="a model")

    monkeypatch.setattr("endx_jax.inference.vector_cache.BLOCK", 2)
    with pytest.warns(UserWarning, match="nothing is cached"):
        found = as_processes(monkeypatch, vectors)
    np.testing.assert_array_equal(found[0], found[1])
    assert computed[0] == computed[1]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, tiny_bert, pairs_csv):
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copytree(tiny_bert, folder / "bert")
    shutil.copy(pairs_csv, folder)
    return folder


@pytest.fixture
def bucket(inputs):
    """URL of a folder in a bucket with the inputs."""
    with gcs_server() as variables, clients_of(variables):
        for file in inputs.rglob("*"):
            if file.is_file():
                buckets.write_bytes(f"gs://{BUCKET}/slow/{file.relative_to(inputs)}", file.read_bytes())
        yield f"gs://{BUCKET}/slow"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "count", "seed"), [("inputs", 2, 1), ("inputs", 4, 3), ("bucket", 2, 2), ("bucket", 4, 5)]
)
def test_a_slow_process_changes_nothing(request, tmp_path, place, count, seed):
    url, made = str(request.getfixturevalue(place)), []
    for name, slow in (("whole", 0), ("slow", seed)):
        seeds = [slow if process == seed % count else 0 for process in range(count)]
        workdir, folder = f"{url if place == 'bucket' else tmp_path}/{name}", tmp_path / name
        printed = finish(start_all(count, url, workdir, tmp_path / f"hosts-{name}", seeds))
        compared = [[line for line in lines.splitlines() if line.startswith("parameters of step")] for lines in printed]
        assert compared[0]
        assert compared == compared[:1] * count
        assert any("slow: " in lines for lines in printed) == bool(slow)
        if place == "bucket":
            buckets.fetch(workdir, buckets.listing(workdir), folder)
        made.append((compared[0], systems_and_losses(folder), logged_losses(folder)))
    assert made[0] == made[1]
