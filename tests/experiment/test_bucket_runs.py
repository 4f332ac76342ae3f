"""Runs whose workdir and data are in a bucket, against fake-gcs-server on the loopback."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import fsspec
import jax
import numpy as np
import pytest
from fake_buckets import BUCKET, clients_of, free_port, gcs_server
from helpers import one_line_error
from loopback import Handler, LoopbackServer

import endx_jax
from endx_jax import buckets
from endx_jax.experiment import bucket_lock
from endx_jax.experiment.model import best_params, read_model
from endx_jax.experiment.run import run
from endx_jax.experiment.workdir import LOCK, run_index
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.training.checkpoints import Checkpoints


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


@pytest.mark.slow
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of requests that Orbax waits not for
def test_a_bucket_that_refuses_a_checkpoint_is_one_line(config, url, tmp_path, monkeypatch):
    """Only TensorStore's requests, which write the arrays, are refused after the first checkpoint."""

    class Refusal(Handler):
        def do_GET(self):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.reply(b"{}", 403)

        do_POST = do_PUT = do_DELETE = do_GET

    config.train.stop_at_step = 2
    run(config, url)
    config.train.stop_at_step = 0
    save = Checkpoints.save
    with LoopbackServer(Refusal) as refusing, monkeypatch.context() as patch:

        def refused(*arguments):
            patch.setenv("TENSORSTORE_GCS_HTTP_URL", refusing.address)
            save(*arguments)

        patch.setattr(Checkpoints, "save", refused)
        with one_line_error(f"{url}/checkpoints/.*: access is denied"):
            run(config, url)
    run(config, url)
    assert json.loads(buckets.read_bytes(f"{url}/results.json"))["systems"]


@pytest.mark.slow
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


@pytest.fixture
def inputs(url, tiny_bert, pairs_csv) -> str:
    """URL of a folder with the data and the pretrained model."""
    for file in [pairs_csv, *tiny_bert.iterdir()]:
        buckets.write_bytes(f"{url}/{'' if file == pairs_csv else 'bert/'}{file.name}", file.read_bytes())
    return url


def start(url, workdir, home, **variables):
    """Starts a process that shares no folder with others but the compilation cache."""
    home.mkdir(exist_ok=True)
    program = pathlib.Path(__file__).parents[1] / "bucket_process.py"
    environment = os.environ | {
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
        "PYTHONPATH": str(pathlib.Path(endx_jax.__file__).parents[1]),
        "PYTHONUNBUFFERED": "1",
        **variables,
    }
    command = [sys.executable, str(program), url, workdir]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, cwd=home, **pipes)


@pytest.mark.slow
def test_two_processes_without_a_common_folder_equal_one(inputs, url, tmp_path, trained_workdir):
    workdir, address = f"{url}/q", f"127.0.0.1:{free_port()}"
    shared = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", "JAX_NUM_CPU_DEVICES": "4"}
    both = [start(inputs, workdir, tmp_path / f"host{k}", JAX_PROCESS_ID=str(k), **shared) for k in range(2)]
    printed = [process.communicate(timeout=400)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    copy = download(workdir, tmp_path / "q")
    local, remote = (json.loads((folder / "results.json").read_text()) for folder in (trained_workdir, copy))
    assert remote["systems"] == local["systems"]
    logs = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (trained_workdir, copy)]
    lines = [[json.loads(line) for line in log] for log in logs]
    losses = [[line["loss"] for line in own if "loss" in line] for own in lines]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert not (copy / LOCK).exists()


@pytest.mark.slow
def test_kills_at_any_moment_leave_what_resumes_bit_equal(inputs, url, tmp_path, trained_workdir):
    workdir, moments = f"{url}/q", ["compiling", "step 3/6", "step 5/6", "evaluating", "encoding"]
    for number, moment in enumerate(moments):
        process = start(inputs, workdir, tmp_path / f"start{number}")
        for line in process.stdout:
            if moment in line:
                break
        process.kill()
        process.wait()
        process.stdout.close()
        print(f"killed at {moment!r}")
    process = start(inputs, workdir, tmp_path / "last")
    printed = process.communicate(timeout=400)[0]
    assert process.returncode == 0, printed
    copy = download(workdir, tmp_path / "q")
    assert steps_of(copy) == steps_of(trained_workdir)
    jax.tree.map(np.testing.assert_array_equal, params_of(workdir, copy), params_of(trained_workdir, trained_workdir))
    local, remote = (json.loads((folder / "results.json").read_text()) for folder in (trained_workdir, copy))
    assert remote["systems"] == local["systems"]


def test_verbs_read_from_a_bucket_and_write_into_it(inputs, url, endx, trained_workdir, tmp_path):
    for file in trained_workdir.rglob("*"):
        if file.is_file() and file.name != LOCK:
            buckets.write_bytes(f"{url}/q/{file.relative_to(trained_workdir)}", file.read_bytes())
    before = buckets.listing(f"{url}/q")
    corpus = [f"--corpus={url}/pairs.csv", "--text-column=answer"]
    endx("encode", f"--workdir={url}/q", *corpus, f"--output={url}/new/corpus.sqlite")
    endx("encode", f"--workdir={trained_workdir}", *corpus, f"--output={tmp_path}/corpus.sqlite")
    asked = ["--top=2", "where is the cat 4"]
    there, here = (endx("search", f"--index={at}/corpus.sqlite", *asked).out for at in (f"{url}/new", tmp_path))
    assert there == here
    assert (
        endx("search", f"--workdir={url}/q", *asked).out == endx("search", f"--workdir={trained_workdir}", *asked).out
    )
    endx("evaluate", f"--workdir={url}/q", f"--data={url}/pairs.csv", "--output", f"{url}/evaluated")
    assert "results.json" in buckets.listing(f"{url}/evaluated")
    endx("evaluate", f"--workdir={url}/q", f"--data={url}/pairs.csv")
    assert {*buckets.listing(f"{url}/q")} - {*before} >= {"evaluation/pairs/results.json"}
    copy = download(f"{url}/new", tmp_path / "copy")
    for place in (tmp_path / "cache", tempfile.gettempdir() + "/endx", tempfile.gettempdir() + "/tmp"):
        assert str(place).encode() not in (copy / "corpus.sqlite").read_bytes()
