import json
import os
import signal
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import endx_jax
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


def test_the_bundled_package_by_name(minilm):
    model = endx_jax.load(minilm)
    documents = ["Around 3.5 million people live in Berlin.", "Cats sleep for most of the day."]
    query, *found = model.encode(["How many people live in Berlin?", *documents])
    similarity = model.similarity(query, np.stack(found))[0]
    assert similarity[0] > 0.7 > 0.3 > similarity[1]


def test_subpackages_are_there_without_importing_them():
    assert callable(endx_jax.losses.in_batch_softmax)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = endx_jax.nothing


def imported(*verb, environment) -> set[str]:
    """The modules that a verb imports; a server is stopped once it is ready."""
    command = [sys.executable, "-X", "importtime", "-m", "endx_jax", *verb]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as program,
    ):
        for line in program.stdout:
            if line.startswith("ready: "):
                program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
        errors.seek(0)
        return {line.rpartition("|")[2].strip() for line in errors if line.startswith("import time:")}


SLOW = ("transformers", "torch", "grain", "optax", "orbax", "pandas", "pyarrow", "huggingface_hub", "tensorflow")


def test_verbs_that_answer_import_nothing_that_trains_and_transformers_for_new_tokenizers_only(tiny_bert, tmp_path):
    (tmp_path / "corpus.txt").write_text("the cat sat on the mat\na dog\n")
    index, environment = tmp_path / "index.sqlite", os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    encode = ["encode", f"--model={tiny_bert}", f"--corpus={tmp_path / 'corpus.txt'}"]
    for first, verb in (  # at first, transformers reads a new tokenizer
        (True, [*encode, f"--output={tmp_path / 'first.sqlite'}"]),
        (False, [*encode, f"--output={index}"]),
        (False, ["search", f"--index={index}", "where is the cat"]),
        (False, ["serve", f"--index={index}", "--port=0"]),
    ):
        modules = imported(*verb, environment=environment)
        assert "endx_jax.inference.embedding_model" in modules
        named = {name.partition(".")[0] for name in modules}
        assert ("transformers" in named) if first else not named & {*SLOW}, verb[0]
        training = tuple(f"endx_jax.{part}" for part in ("training", "methods", "experiment.config"))
        assert [name for name in modules if name.startswith(training)] == [], verb[0]
    assert [*(tmp_path / "cache" / "endx_jax" / "xla").iterdir()]  # compiled programs


ENCODE = """
import json, sys
import endx_jax
endx_jax.load(sys.argv[1]).encode_query("who")
print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] == "endx_jax")))
"""
NOT_NEEDED = ("training", "methods", "losses", "experiment", "retrieval", "export", "serving", "cli")


def test_loading_and_encoding_import_at_most_80_modules_and_none_about_training(tiny_bert):
    done = subprocess.run(
        [sys.executable, "-c", ENCODE, str(tiny_bert)], capture_output=True, text=True, timeout=120, check=True
    )
    modules = json.loads(done.stdout)
    assert "endx_jax.models.tower" in modules
    assert [name for name in modules if name.split(".")[1:2] and name.split(".")[1] in NOT_NEEDED] == []
    assert len(modules) <= 80, f"{len(modules)} modules: {modules}"
