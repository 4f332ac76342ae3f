import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import endx_jax
from endx_jax.data import tokenizer_files
from endx_jax.data.tokenization import Tokenizer
from endx_jax.index.index import Index


@pytest.fixture(scope="module")
def model(trained_workdir):
    return endx_jax.load(trained_workdir)


def test_a_workdir_gives_the_trained_towers_that_its_index_was_made_with(model, tiny_bert, trained_workdir):
    trained, untrained = model.encode_query("the cat"), endx_jax.load(tiny_bert).encode_query("the cat")
    assert trained.shape == untrained.shape == (32,)
    assert np.abs(trained - untrained / np.linalg.norm(untrained)).max() > 1e-4
    info = Index(trained_workdir / "index.sqlite").snapshot.info
    assert info.model["identity"] == model.identity
    assert info.width == model.width == 32
    assert not model.asymmetric
    assert model.source.workdir == trained_workdir


def test_a_pretrained_folder_with_a_subfolder_model_is_no_run(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "bert")
    shutil.copytree(tiny_bert, folder / "model")
    assert endx_jax.load(folder).source.workdir is None


def test_the_bundled_package_by_name(minilm):
    model = endx_jax.load(minilm)
    documents = ["Around 3.5 million people live in Berlin.", "Cats sleep for most of the day."]
    query, *found = model.encode(["How many people live in Berlin?", *documents])
    similarity = model.similarity(query, np.stack(found))[0]
    assert similarity[0] > 0.7 > 0.3 > similarity[1]


# Loads a model as a library does and runs verbs, all in one process; after each, prints what has been imported so far.
PROGRAM = """
import json, os, sys
import endx_jax, endx_jax.mteb
tell, end = lambda: print(json.dumps([*sys.modules]), flush=True), os._exit
os._exit = lambda status: (tell(), end(status))  # a server ends with it
endx_jax.load(sys.argv[1]).encode_query("who")
tell()
from endx_jax.cli.entry import run_verb
for verb in json.loads(sys.argv[2]):
    assert run_verb(verb) == 0
    tell()
"""


SLOW = {*"transformers torch grain optax orbax pandas pyarrow huggingface_hub tensorflow mteb".split()}
TRAINING = tuple(f"endx_jax.{part}" for part in ("training", "methods", "experiment.config"))
NOT_NEEDED = ("training", "methods", "losses", "experiment", "retrieval", "export", "serving", "cli")


def test_answers_and_the_adapter_of_mteb_need_nothing_that_trains_and_no_slow_library(tiny_bert, tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("the cat sat on the mat\na dog\n")
    index, cache = tmp_path / "index.sqlite", tmp_path / "cache" / "endx_jax"
    encode = ["encode", f"--model={tiny_bert}", f"--corpus={tmp_path / 'corpus.txt'}", f"--output={index}"]
    search, serve = ["search", f"--index={index}", "where is the cat"], ["serve", f"--index={index}", "--port=0"]
    monkeypatch.setattr(tokenizer_files, "STATES", str(cache / "tokenizers"))
    Tokenizer(tiny_bert)  # transformers reads a new tokenizer, once
    environment = os.environ | {"XDG_CACHE_HOME": str(cache.parent)}
    command, found = [sys.executable, "-c", PROGRAM, str(tiny_bert), json.dumps([encode, search, serve])], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        for line in program.stdout:
            if line.startswith("ready: "):
                program.send_signal(signal.SIGTERM)
            elif line.startswith("["):
                found.append({*json.loads(line)})
        assert program.wait(60) == 0
    assert len(found) == 4
    for modules in found:
        assert "endx_jax.inference.embedding_model" in modules
        assert not {name.partition(".")[0] for name in modules} & SLOW
        assert [name for name in modules if name.startswith(TRAINING)] == []
    assert [*(cache / "xla").iterdir()]  # compiled programs
    own = sorted(name for name in found[0] if name.partition(".")[0] == "endx_jax")
    assert [name for name in own if name.split(".")[1:2] and name.split(".")[1] in NOT_NEEDED] == []
    assert len(own) <= 80, f"{len(own)} modules: {own}"
