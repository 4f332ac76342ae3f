import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from helpers import written
from http_server import Running

from endx_jax.cli import encode, serve
from endx_jax.data.sets.documents import Document
from endx_jax.experiment.saved_model import load_pair_scorer
from endx_jax.serving import app


class Served(Exception):
    """The service that a server would serve."""


@pytest.fixture
def service(monkeypatch):
    """The service that the verb serves with these flags, without a server."""

    def end(served, *settings, **options):
        raise Served(served)

    def of(*flags):
        with pytest.raises(Served) as served:
            serve.main([*flags, "--port=0"])
        return served.value.args[0]

    monkeypatch.setattr(app, "make_app", end)
    return of


def test_serves_until_it_is_told_to_stop(trained_workdir, tmp_path):
    """With the token of a file, which goes before that of the environment."""
    token, environment = written(tmp_path / "token", "secret\n"), os.environ | {serve.TOKEN: "other"}
    command = [sys.executable, "-m", "endx_jax", "serve", f"--workdir={trained_workdir}", "--port=0"]
    command.append(f"--token-file={token}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as program:
        try:
            searched = r"searching 58 documents with 60 known questions .*, mode hybrid: dense \+ 0.08 x BM25 .*\n"
            assert re.fullmatch(searched, program.stdout.readline())
            assert re.fullmatch(r"encoded by .*; warming up\n", program.stdout.readline())
            url = re.fullmatch(r"ready: open (http://127\.0\.0\.1:\d+) .*\n", program.stdout.readline())[1]
            assert urllib.request.urlopen(f"{url}/readyz").status == 200
            asked = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": "Bearer secret"})
            assert urllib.request.urlopen(asked).status == 200
            program.send_signal(signal.SIGTERM)
            assert program.communicate(timeout=60) == ("stopped\n", "")
        finally:
            program.kill()
    assert program.returncode == 0


def test_a_folder_of_documents_is_encoded_once_and_served(service, tiny_bert, tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "cat.md").write_text("# The cat\n\nThe cat sat on a mat.")
    flags = f"--model={tiny_bert}", f"--corpus={tmp_path / 'docs'}"
    ((answer,),) = service(*flags).index.search(["where is the cat"], 3)
    assert (answer.document.id, answer.document.metadata["source"]) == ("cat.md", "cat.md")
    said = capsys.readouterr().out
    assert "docs: 1 file, split into 1 passage\n1 document in " in said
    assert f"the index is {os.environ['XDG_CACHE_HOME']}/endx_jax/indexes/" in said
    service(*flags)
    assert "is their index already; nothing to encode" in capsys.readouterr().out
    encode.main([*flags, "--precision=int8"])  # into another index
    service(*flags)
    assert "is their index already; nothing to encode" in capsys.readouterr().out
    (tmp_path / "docs" / "dog.md").write_text("# The dog\n\n" + "The dog ran. " * 100)
    assert len(service(*flags).index) == 2
    said = capsys.readouterr().out
    assert "encoded 2 passages, took over 1 of " in said
    assert "\n2 of 2 passages reach the limit of 64 tokens" in said
    pairs = written(tmp_path / "pairs.csv", "key,asked,answer,about\n7,where is the cat,on a mat,Cats\n")
    columns = ["--text-column=answer", "--question-column=asked", "--title-column=about", "--id-column=key"]
    ((_, document),) = service(flags[0], f"--corpus={pairs}", *columns).index.snapshot
    assert document == Document("7", "Cats on a mat", {"title": "Cats"}, ("where is the cat",))


def test_a_corpus_has_the_language_of_the_run(service, trained_workdir, tmp_path):
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    config = json.loads((workdir / "config.json").read_text())
    config["data"]["language"] = "german"
    (workdir / "config.json").write_text(json.dumps(config))
    corpus = written(tmp_path / "docs.jsonl", [{"id": "a", "text": "the cat"}])
    assert service(f"--workdir={workdir}", f"--corpus={corpus}").index.snapshot.info.language == "german"


def test_the_cross_encoder_of_a_run_scores_documents(service, trained_workdir, pair_workdir):
    documents = ["the mat of 3", "a dog", "the mats of 12"]
    expected = load_pair_scorer(pair_workdir)(["where is the cat 3"], documents)(np.array([[0, 0], [0, 1], [0, 2]]))
    assert len(set(expected.tolist())) == 3
    served = service(f"--workdir={trained_workdir}", f"--rerank={pair_workdir}")
    served.preparations = served.later_preparations = list
    running = Running(served)
    try:
        status, content = running.post("/v1/rerank", {"query": "where is the cat 3", "documents": documents})
        _, cut = running.post("/v1/rerank", {"query": "where is the cat 3", "documents": [*documents, "mat " * 2000]})
    finally:
        running.stop()
    found = [(result["index"], result["relevance_score"]) for result in content["results"]]
    assert (status, [n for n, _ in found]) == (200, np.argsort(-expected).tolist())
    np.testing.assert_allclose([score for _, score in found], np.sort(expected)[::-1], rtol=1e-6)
    assert (content.get("note"), cut["note"][:18]) == (None, "1 of 4 documents a")


def test_a_port_that_is_in_use_or_a_broken_host_is_one_line(endx, trained_workdir):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = endx("serve", f"--workdir={trained_workdir}", f"--port={port}", status=2).err
    assert line.startswith(f"endx serve: 127.0.0.1 port {port} can't be bound (Address already in use)")
    flags = f"--workdir={trained_workdir}", "--host=0.0.0..0", "--allow-anonymous"
    assert "0.0.0..0 port 8000 can't be bound" in endx("serve", *flags, status=2).err


def test_a_token_of_the_environment_is_checked_too(endx, variables):
    variables(**{serve.TOKEN: "two words"})
    assert serve.TOKEN in endx("serve", "--index=nowhere", status=2).err
