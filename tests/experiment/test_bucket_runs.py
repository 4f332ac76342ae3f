"""Runs whose workdir and data are in a bucket, against fake-gcs-server on the loopback."""

import json
import pathlib
import shutil
import tempfile

import fsspec
import jax
import numpy as np
import pytest
from fake_buckets import BUCKET, clients_of, gcs_server
from helpers import one_line_error

import endx_jax
from endx_jax import buckets
from endx_jax.experiment import bucket_lock
from endx_jax.experiment.model import best_params, read_model
from endx_jax.experiment.run import run
from endx_jax.experiment.workdir import LOCK, run_index
from endx_jax.parallel.mesh import MeshSettings, make_mesh


@pytest.fixture(scope="module")
def server():
    with gcs_server() as variables, clients_of(variables):
        yield variables


@pytest.fixture
def url(server, request) -> str:
    return f"gs://{BUCKET}/runs of β/{request.node.name.replace('[', ' ').replace(']', '')}"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def params_of(workdir, local):
    return jax.device_get(best_params(workdir, read_model(local), make_mesh(MeshSettings()))[0])


def download(url, folder):
    buckets.fetch(url, buckets.listing(url), folder)
    return folder


def steps_of(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_in_a_bucket_equals_a_local_one(config, url, tmp_path, trained_workdir, pairs_csv, monkeypatch, capsys):
    """Interrupted after three of six steps; data, too, is in the bucket, and nothing in it names a local path."""
    fsspec.filesystem("gs").put_file(str(pairs_csv), f"{url}/data/pairs.csv")
    config.data.path = f"{url}/data/pairs.csv"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    workdir = f"{url}/q"
    config.train.stop_at_step = 3
    assert run(config, workdir) is None
    config.train.stop_at_step = 0
    results = run(config, workdir)
    assert not [*scratch.iterdir()]
    assert run(config, workdir) is None
    assert "nothing to do" in capsys.readouterr().out

    copy = download(workdir, tmp_path / "q")
    assert not (copy / LOCK).exists()
    local, remote = (json.loads((folder / "results.json").read_text()) for folder in (trained_workdir, copy))
    assert remote["systems"] == local["systems"]
    assert steps_of(copy) == steps_of(trained_workdir)
    jax.tree.map(np.testing.assert_array_equal, params_of(workdir, copy), params_of(trained_workdir, trained_workdir))
    for file in copy.rglob("*"):
        if file.is_file():
            contents = file.read_bytes()
            for place in (scratch, tmp_path / "cache", copy, pathlib.Path.cwd()):
                assert str(place).encode() not in contents, file

    model = endx_jax.load(workdir)
    assert model.name == workdir
    expected = endx_jax.load(trained_workdir).encode_query(["where is the cat"])
    np.testing.assert_array_equal(model.encode_query(["where is the cat"]), expected)
    assert run_index(workdir).info.model["name"] == workdir
    assert results is not None


def test_a_local_run_resumes_in_a_bucket_and_the_other_way(config, url, tmp_path, trained_workdir):
    local = tmp_path / "q"
    config.train.stop_at_step = 2
    run(config, local)
    for file in local.rglob("*"):
        if file.is_file():
            buckets.write_bytes(f"{url}/{file.relative_to(local)}", file.read_bytes())
    config.train.stop_at_step = 4
    run(config, url)
    shutil.rmtree(local)
    download(url, local)
    config.train.stop_at_step = 0
    run(config, local)
    jax.tree.map(np.testing.assert_array_equal, params_of(local, local), params_of(trained_workdir, trained_workdir))


def test_a_damaged_checkpoint_in_a_bucket_is_not_used(config, url, tmp_path, capsys):
    config.train.stop_at_step = 4
    run(config, url)
    name = next(name for name in buckets.listing(url) if name.startswith("checkpoints/4/params/d/"))
    contents = bytearray(buckets.read_bytes(f"{url}/{name}"))
    contents[100] ^= 1
    buckets.write_bytes(f"{url}/{name}", contents)
    config.train.stop_at_step = 5
    run(config, url)
    printed = capsys.readouterr().out
    assert "checkpoint 4 can't be used" in printed
    assert "resuming from the checkpoint of step 2" in printed


def test_a_second_run_waits_for_the_first_one_or_is_refused(config, url, monkeypatch, capsys):
    monkeypatch.setattr(bucket_lock, "EVERY", 0.1)
    monkeypatch.setattr(bucket_lock, "PATIENCE", 1.0)
    lock = f"{url}/{LOCK}"
    with bucket_lock.BucketLock(lock, "wait"), one_line_error(f"{url} is in use by process .* since .*: wait"):
        run(config, url)
    assert buckets.read_bytes(lock) is None
    buckets.write_bytes(lock, b'{"host": "h", "process": 7, "since": "then"}')  # its holder was killed
    with bucket_lock.BucketLock(lock, "wait"):
        assert b'"h"' not in buckets.read_bytes(lock)
    assert "is taken over: process 7 on h since then has ended" in capsys.readouterr().out
