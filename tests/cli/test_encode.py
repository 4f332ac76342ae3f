import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import endx_jax
from endx_jax.numerics import Quantized, dequantize
from endx_jax.retrieval.shards import read_manifest

WORDS = "the cat sat on a mat dog where is who what in".split()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    draw = random.Random(0)
    with open(path, "w") as stream:
        for n in range(200):
            row = {"_id": f"doc {n}", "title": f"t {n}", "text": " ".join(draw.choices(WORDS, k=n % 9))}
            stream.write(json.dumps(row) + "\n")
    return path


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_documents_that_are_cut_are_counted(trained_workdir, tmp_path, endx):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": "the cat " * n}) + "\n" for n in (1, 20, 30)))
    shown = endx("encode", f"--workdir={trained_workdir}", f"--corpus={path}", f"--output={tmp_path / 'index'}").out
    assert shown.splitlines()[-1] == (
        "2 of 3 documents reach the limit of 24 tokens: only their beginnings are embedded; split them into passages, "
        "or train with a larger --config.data.answer_length"
    )


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_an_index_holds_what_the_model_says(trained_workdir, corpus, tmp_path, endx, precision):
    arguments = [f"--workdir={trained_workdir}", f"--corpus={corpus}", f"--output={tmp_path}", "--shard-size=128"]
    arguments += [f"--precision={precision}", "--truncate-dim=8"]
    assert re.fullmatch(
        rf"200 documents in {corpus}\nencoding 200 documents; programs are compiled the first time only\n"
        rf"encoded 200 documents in \d+ s, \d+ a second\nthe index is in {tmp_path}\n",
        endx("encode", *arguments).out,
    )
    manifest, model = read_manifest(tmp_path), endx_jax.load(trained_workdir)
    assert (manifest.metric, manifest.precision, manifest.width) == ("cosine", precision, 8)
    assert manifest.model["identity"] == model.identity
    assert [shard.documents for shard in manifest.shards] == [128, 72]
    documents = [json.loads(line) for line in (tmp_path / "documents-00001.jsonl").read_text().splitlines()]
    assert documents[0]["id"] == "doc 128"
    assert documents[0]["metadata"] == {"title": "t 128"}
    found = np.load(tmp_path / "embeddings-00001.npy")
    if precision == "int8":
        found = dequantize(Quantized(found, np.load(tmp_path / "scales-00001.npy")))
    texts = [document["text"] for document in documents]
    expected = model.encode_document(texts, truncate_dim=8, normalize_embeddings=True)
    np.testing.assert_allclose(found, expected, atol={"float32": 1e-6, "float16": 1e-3, "int8": 1 / 254}[precision])
    assert endx("encode", *arguments).out.endswith(f"{tmp_path} is finished; nothing to do\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--truncate-dim=33"], "--truncate-dim=33: embeddings of .* have 32 dimensions"),
        (["--truncate-dim=0"], "--truncate-dim=0: embeddings"),
        (["--batch-size=0"], "--batch-size is 0; it must be from 1"),
        (["--shard-size=0"], "--shard-size=0: a shard holds at least one document"),
        (["--text-column=body"], "line 1: no column 'body'"),
        (["--pool=answers"], "only reading-comprehension data can be split into answers"),
    ],
)
def test_invalid_arguments_are_refused(tiny_bert, corpus, tmp_path, endx, arguments, reason):
    common = [f"--model={tiny_bert}", f"--corpus={corpus}", f"--output={tmp_path / 'new'}"]
    assert re.search(reason, endx("encode", *common, *arguments, status=2).err)
    assert not (tmp_path / "new").exists()


def start(tiny_bert, corpus, output) -> subprocess.Popen:
    arguments = [f"--model={tiny_bert}", f"--corpus={corpus}", f"--output={output}", "--shard-size=4"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "endx_jax", "encode", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(process) -> int:
    """Waits for a process that should end well; how many documents it has encoded."""
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return int(re.search(r"encoded (\d+) documents", out)[1])


@pytest.mark.slow
def test_killed_three_times_and_shared_by_two_it_is_the_same(tiny_bert, corpus, tmp_path):
    assert finish(start(tiny_bert, corpus, tmp_path / "whole")) == 200
    draw = random.Random()
    for kills in range(3):
        with start(tiny_bert, corpus, tmp_path / "killed") as process:
            while process.poll() is None and len(shards(tmp_path / "killed")) < 12 * kills + 1:
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert 0 < len(shards(tmp_path / "killed")) < 50
    assert 0 < finish(start(tiny_bert, corpus, tmp_path / "killed")) < 200
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")

    two = [start(tiny_bert, corpus, tmp_path / "shared") for _ in range(2)]
    assert sum(map(finish, two)) == 200
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")


def shards(folder) -> list[pathlib.Path]:
    return [*folder.glob("documents-*.jsonl")]
