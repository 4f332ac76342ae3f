import re
import signal
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from helpers import refused, written
from http_server import Running

from endx_jax.cli import serve
from endx_jax.experiment.saved_model import load_pair_scorer


def test_serves_until_it_is_told_to_stop(trained_workdir):
    command = [sys.executable, "-m", "endx_jax", "serve", f"--workdir={trained_workdir}", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            searched = r"searching 58 documents with 60 known questions .*, mode hybrid: dense \+ 0.08 x BM25 .*\n"
            assert re.fullmatch(searched, program.stdout.readline())
            assert re.fullmatch(r"encoded by .*; warming up\n", program.stdout.readline())
            url = re.fullmatch(r"ready: open (http://127\.0\.0\.1:\d+) .*\n", program.stdout.readline())[1]
            assert urllib.request.urlopen(f"{url}/readyz").status == 200
            program.send_signal(signal.SIGTERM)
            assert program.communicate(timeout=60) == ("stopped\n", "")
        finally:
            program.kill()
    assert program.returncode == 0


def test_a_folder_of_documents_is_encoded_once_and_served(tiny_bert, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "cat.md").write_text("# The cat\n\nThe cat sat on a mat.")
    arguments = serve._parser().parse_args([f"--model={tiny_bert}", f"--corpus={tmp_path / 'docs'}"])
    ((answer,),) = serve._service(arguments).index.search(["where is the cat"], 3)
    assert (answer.document.id, answer.document.metadata["source"]) == ("cat.md", "cat.md")
    said = capsys.readouterr().out
    assert "docs: 1 file, split into 1 passage\n1 document in " in said
    assert f"the index is {tmp_path}/.cache/endx_jax/indexes/" in said
    serve._service(serve._parser().parse_args([f"--model={tiny_bert}", f"--corpus={tmp_path / 'docs'}"]))
    assert "is their index already; nothing to encode" in capsys.readouterr().out


def test_columns_of_a_corpus_are_given_to_encode(monkeypatch):
    class Stop(Exception):
        pass

    def encode(model, corpus, **columns):
        raise Stop(model, corpus, columns)

    monkeypatch.setattr("endx_jax.index.corpus_encoding.encode_corpus", encode)
    given = ["--model=m", "--corpus=pairs.csv", "--text-column=answer", "--question-column=asked", "--id-column="]
    given.append("--title-column=title")
    with pytest.raises(Stop) as caught:
        serve._service(serve._parser().parse_args(given))
    columns = {"text_column": "answer", "question_column": "asked"}
    columns |= {"id_column": "", "title_column": "title", "split": None}
    assert caught.value.args == ("m", "pairs.csv", columns)


def test_the_cross_encoder_of_a_run_scores_documents(trained_workdir, pair_workdir):
    arguments = serve._parser().parse_args([f"--workdir={trained_workdir}", f"--rerank={pair_workdir}"])
    documents = ["the mat of 3", "a dog", "the mats of 12"]
    expected = load_pair_scorer(pair_workdir)(["where is the cat 3"], documents)(np.array([[0, 0], [0, 1], [0, 2]]))
    assert len(set(expected.tolist())) == 3
    service = serve._service(arguments)
    service.preparations = service.later_preparations = list
    running = Running(service)
    try:
        status, content = running.post("/v1/rerank", {"query": "where is the cat 3", "documents": documents})
        _, cut = running.post("/v1/rerank", {"query": "where is the cat 3", "documents": [*documents, "mat " * 2000]})
    finally:
        running.stop()
    found = [(result["index"], result["relevance_score"]) for result in content["results"]]
    assert (status, [n for n, _ in found]) == (200, np.argsort(-expected).tolist())
    np.testing.assert_allclose([score for _, score in found], np.sort(expected)[::-1], rtol=1e-6)
    assert (content.get("note"), cut["note"][:18]) == (None, "1 of 4 documents a")


def test_a_port_that_is_in_use_is_one_line(endx, trained_workdir):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = endx("serve", f"--workdir={trained_workdir}", f"--port={port}", status=2).err
    assert line.startswith(f"endx serve: 127.0.0.1 port {port} can't be bound (Address already in use)")


def test_a_package_that_is_missing_is_one_line(endx, monkeypatch):
    monkeypatch.setitem(sys.modules, "endx_jax.serving.app", None)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert 'pip install -e ".[serve]"' in endx("serve", "--index=nowhere", status=2).err


def test_a_token_comes_from_a_file_or_the_environment(monkeypatch, tmp_path):
    file = written(tmp_path / "token", "secret\n")
    monkeypatch.setenv(serve.TOKEN, "other")
    assert serve._token(file) == "secret"
    assert serve._token(None) == "other"
    monkeypatch.setenv(serve.TOKEN, "")
    assert serve._token(None) is None
    monkeypatch.setenv(serve.TOKEN, " other\n")
    assert serve._token(None) == "other"
    for wrong in (" ", "two words", "naïve"):
        file.write_text(wrong)
        refused(r"^--token-file=.*: one line of ASCII without spaces", serve._token, file)
        monkeypatch.setenv(serve.TOKEN, wrong)
        refused("^the variable ENDX_TOKEN .*: one line of ASCII without spaces", serve._token, None)


def test_addresses_of_this_machine_are_known():
    assert all(map(serve._is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(serve._is_loopback, ("0.0.0.0", "a.b")))
