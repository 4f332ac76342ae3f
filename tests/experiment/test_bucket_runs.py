"""Runs whose workdir and data are in a bucket, against fake-gcs-server on the loopback."""

import json
import pathlib
import tempfile
import threading

import fsspec
import jax
import numpy as np
import pytest
from fake_buckets import BUCKET, clients_of, gcs_server
from helpers import one_line_error, raising
from loopback import LoopbackServer, always
from refusals import check_refusal
from several_processes import finish, start_all, systems_and_losses
from small_beir import write_beir

import endx_jax
from endx_jax import buckets, uploads
from endx_jax.errors import RunInterrupted
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.run import run
from endx_jax.experiment.saved_model import best_params, read_model
from endx_jax.experiment.workdir import LOCK, run_index
from endx_jax.export.run import export
from endx_jax.files import expanded
from endx_jax.index.corpus_encoding import encode_corpus
from endx_jax.index.index import Index, write_index
from endx_jax.index.shards import join_shards
from endx_jax.inference.merging import merge_models
from endx_jax.parallel.console import say
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.training.checkpoints import Checkpoints, find_damage


@pytest.fixture(scope="module")
def server():
    with gcs_server() as variables, clients_of(variables):
        yield variables


@pytest.fixture
def url(server, request) -> str:
    return f"gs://{BUCKET}/runs of β/{request.node.name.replace('[', ' ').replace(']', '')}"


def params_of(workdir, local):
    return jax.device_get(best_params(workdir, read_model(local), make_mesh(MeshSettings()))[0])


def download(url, folder):
    buckets.fetch(url, buckets.listing(url), folder)
    return folder


def steps_of(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_in_a_bucket_equals_a_local_one(config, url, tmp_path, trained_workdir, pairs_csv, monkeypatch, capsys):
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
    assert Index(run_index(workdir)).snapshot.info.model["name"] == workdir
    assert results is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of requests that Orbax waits not for
def test_a_bucket_that_refuses_a_checkpoint_is_one_line(config, url, tmp_path, monkeypatch):
    config.train.stop_at_step = 2
    run(config, url)
    config.train.stop_at_step = 0
    save = Checkpoints.save
    with LoopbackServer(always(b"{}", 403)) as refusing, monkeypatch.context() as patch:

        def refused(*arguments):
            patch.setenv("TENSORSTORE_GCS_HTTP_URL", refusing.address)
            save(*arguments)

        patch.setattr(Checkpoints, "save", refused)
        check_refusal(lambda: run(config, url), f"{url}/checkpoints/", "access is denied")
    config.train.stop_at_step = 4
    run(config, url)
    assert any(name.startswith("checkpoints/4/") for name in buckets.listing(url))


def test_a_second_run_waits_for_the_first_one_or_is_refused(config, url, monkeypatch, capsys):
    monkeypatch.setattr(workdirs, "LOCK_EVERY", 0.1)
    monkeypatch.setattr(workdirs, "LOCK_PATIENCE", 1.0)
    lock = f"{url}/{LOCK}"
    with workdirs.bucket_lock(lock, "wait"), one_line_error(f"{url} is in use by process .* since .*: wait"):
        run(config, url)
    assert buckets.read_bytes(lock) is None
    buckets.write_bytes(lock, b'{"host": "h", "process": 7, "since": "then"}')  # its holder was killed
    with workdirs.bucket_lock(lock, "wait"):
        assert b'"h"' not in buckets.read_bytes(lock)
    assert "is taken over: process 7 on h since then has ended" in capsys.readouterr().out
    buckets.write_bytes(lock, b'{"host": "h"}')
    ending = threading.Timer(0.3, buckets.remove, [lock])
    ending.start()
    with workdirs.bucket_lock(lock, "wait"):
        assert b'"h"' not in buckets.read_bytes(lock)
    assert "taken over" not in capsys.readouterr().out


def test_a_model_is_copied_without_what_a_run_writes_beside_it(url):
    folders = "model", "checkpoints/1", "tensorboard", "wandb", "profile", "evaluation/test"
    for name in (*(f"{folder}/a" for folder in folders), "index.sqlite", LOCK):
        buckets.write_bytes(f"{url}/{name}", b"a")
    buckets.write_bytes(f"{url}/model/method.json", b"{}")
    check_refusal(lambda: endx_jax.load(url), "no model yet", "resume")
    copy = expanded(buckets.CACHE) / "files" / url.replace("://", "/")
    assert [entry.name for entry in copy.iterdir()] == ["model"]


def test_lines_and_errors_of_a_workdir_name_the_bucket_and_not_the_local_copy(url, capsys):
    buckets.write_bytes(f"{url}/data.json", b'{"other": 1}')
    with one_line_error(f"^{url}/data.json: no 'sha256' among 'other'$"), workdirs.opened(url) as home:
        say(f"see {home / 'index.sqlite'}")
        workdirs.read_data(home)
    assert capsys.readouterr().out == f"see {url}/index.sqlite\n"


def test_the_settings_of_a_run_are_read_without_its_other_files(trained_workdir, monkeypatch):
    objects = {"gs://bucket/q/config.json": (trained_workdir / "config.json").read_bytes()}
    monkeypatch.setattr(workdirs, "read_bytes", objects.get)
    assert workdirs.read_config("gs://bucket/q") == workdirs.read_config(trained_workdir)
    check_refusal(lambda: workdirs.read_config("gs://bucket/r"), "gs://bucket/r", "holds no run")


def test_the_index_of_a_run_is_not_a_copy_so_that_a_server_follows_it(trained_workdir, monkeypatch):
    monkeypatch.setattr(workdirs, "local_copy", lambda *_, **__: trained_workdir)
    assert run_index("gs://bucket/q/") == "gs://bucket/q/index.sqlite"


@pytest.mark.parametrize(
    "write",
    [
        lambda to: encode_corpus("model", "corpus.csv", to),
        lambda to: join_shards(to, ["shard"]),
        lambda to: merge_models(["model"], to),
        lambda to: endx_jax.mine("pairs.csv", to, bm25=True),
        lambda to: export("model", "stablehlo", to),
        lambda to: write_index(to, [], [], metric="cosine", model={}),
    ],
)
def test_what_writes_an_output_tries_the_bucket_first(write, monkeypatch):
    monkeypatch.setattr(uploads, "try_writing", raising(RunInterrupted("tried")))
    with pytest.raises(RunInterrupted, match="tried"):
        write("gs://bucket/out")


@pytest.fixture
def inputs(url, tiny_bert, pairs_csv) -> str:
    """URL of a folder with the data and the pretrained model."""
    for file in [pairs_csv, *tiny_bert.iterdir()]:
        buckets.write_bytes(f"{url}/{'' if file == pairs_csv else 'bert/'}{file.name}", file.read_bytes())
    return url


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_kills_at_any_moment_leave_what_resumes_bit_equal(inputs, url, tmp_path, count):
    finish(start_all(count, inputs, f"{url}/whole", tmp_path / "whole"))
    for number, moment in enumerate(["compiling", "step 3/6", "step 5/6", "evaluating", "encoding"]):
        processes = start_all(count, inputs, f"{url}/q", tmp_path / f"start{number}")
        assert any(moment in line for line in processes[0].stdout), moment
        victim = processes.pop(number % count)
        victim.kill()
        victim.communicate()
        for other in processes:  # ends by itself
            printed = other.communicate(timeout=120)[0]
            assert other.returncode, printed
        print(f"killed {number % count} of {count} at {moment!r}")
    finish(start_all(count, inputs, f"{url}/q", tmp_path / "last"))
    copies = [download(f"{url}/{name}", tmp_path / f"copy-{name}") for name in ("whole", "q")]
    assert steps_of(copies[0]) == steps_of(copies[1])
    whole, resumed = (params_of(f"{url}/{copy.name[5:]}", copy) for copy in copies)
    jax.tree.map(np.testing.assert_array_equal, whole, resumed)
    assert systems_and_losses(copies[0])[0] == systems_and_losses(copies[1])[0]


def test_verbs_read_from_a_bucket_and_write_into_it(inputs, url, endx, trained_workdir, tmp_path):
    for file in trained_workdir.rglob("*"):
        if file.is_file() and file.name != LOCK:
            buckets.write_bytes(f"{url}/q/{file.relative_to(trained_workdir)}", file.read_bytes())
    assert find_damage(f"{url}/q", 6) is None  # by the SHA-256 of files that were written into a folder
    before = buckets.listing(f"{url}/q")
    corpus = [f"--corpus={url}/pairs.csv", "--text-column=answer"]
    endx("encode", f"--workdir={url}/q", *corpus, f"--output={url}/new/corpus.sqlite")
    endx("encode", f"--workdir={trained_workdir}", *corpus, f"--output={tmp_path}/corpus.sqlite")
    reuse = endx(
        "encode", f"--workdir={url}/q", *corpus, f"--output={url}/new/again.sqlite", f"--reuse={url}/new/corpus.sqlite"
    )
    assert "encoded 0 documents" in reuse.out
    shards = [f"{url}/new/{number}.sqlite" for number in (1, 2)]
    for number, shard in enumerate(shards, 1):
        endx("encode", f"--workdir={url}/q", *corpus, f"--output={shard}", f"--shard={number}/2")
    join = ["encode", "--join", *shards, f"--output={url}/new/joined.sqlite"]
    assert f"the index is {url}/new/joined.sqlite\n" in endx(*join).out
    assert f"{url}/new/joined.sqlite exists" in endx(*join, status=2).err
    asked = ["--top=2", "where is the cat 4"]
    files = [f"{url}/new/corpus.sqlite", f"{url}/new/joined.sqlite", f"{tmp_path}/corpus.sqlite"]
    assert len({endx("search", f"--index={file}", *asked).out for file in files}) == 1
    found = {endx("search", f"--workdir={place}", *asked).out for place in (f"{url}/q", trained_workdir)}
    assert len(found) == 1
    assert f": {url}/found.txt\n" in endx("search", f"--workdir={url}/q", *asked, "--output", f"{url}/found.txt").err
    assert buckets.read_bytes(f"{url}/found.txt").decode() in found
    endx("evaluate", f"--workdir={url}/q", f"--data={url}/pairs.csv", "--output", f"{url}/evaluated")
    assert "results.json" in buckets.listing(f"{url}/evaluated")
    endx("evaluate", f"--workdir={url}/q", f"--data={url}/pairs.csv")
    assert {*buckets.listing(f"{url}/q")} - {*before} >= {"evaluation/pairs/results.json"}
    judged = write_beir(tmp_path / "judged", {"a": "the cat sat"}, {"q": "where is the cat"}, test=[("q", "a", 1)])
    endx("encode", f"--workdir={url}/q", f"--corpus={judged}", f"--output={url}/new/beir.sqlite")
    endx("evaluate", f"--index={url}/new/beir.sqlite", f"--workdir={url}/q", f"--data={judged}", "--split=test")
    assert "beir-evaluation/judged/results.json" in buckets.listing(f"{url}/new")
    copy = download(f"{url}/new", tmp_path / "copy")
    for place in (tmp_path / "cache", tempfile.gettempdir() + "/endx", tempfile.gettempdir() + "/tmp"):
        assert str(place).encode() not in (copy / "corpus.sqlite").read_bytes()
