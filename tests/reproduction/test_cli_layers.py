"""`endx papers layers`, from a model's name or a file of ELMo's to the tables."""

import csv
import json

import numpy as np
import pytest
from small_squad import write_regular

from endx_jax.pretrained.static import split_words


@pytest.fixture(scope="module")
def squad(tmp_path_factory):
    return write_regular(tmp_path_factory.mktemp("squad"))


def vector(word, layer=0):
    seed = [layer, *word.lower().encode()]
    return np.random.default_rng(seed).normal(size=6).astype(np.float32)


@pytest.fixture(scope="module")
def words(squad):
    """Word vectors, by which a number in the question finds the paragraph that holds it."""
    known = ["cats", "dogs", "number", "nothing", "of", "?", ".", *map(str, range(70))]
    file = squad / "words.txt"
    file.write_text("".join(f"{word} {' '.join(map(str, vector(word)))}\n" for word in known))
    return file


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Keeps the cache of vectors out of the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def run(reproduce, tmp_path):
    """Runs the verb; returns its JSON and what it prints."""

    def report(*arguments):
        printed = reproduce("layers", f"--output={tmp_path}", *arguments)
        return json.loads((tmp_path / "layers.json").read_text()), printed.out

    return report


def test_word_vectors_retrieve_better_with_idf(squad, words, tmp_path, run):
    found, shown = run(f"--model={words}", f"--data={squad}")
    assert found["layers"] == ["token table"]
    assert found["sets"]["test"] == {"questions": 80, "candidates": 40, "right": 80}
    plain, idf = (system["metrics"]["test"] for system in found["systems"])
    assert idf["recall@1"] > plain["recall@1"] + 0.2
    assert idf["ap"] > plain["ap"]
    assert found["best"] == "token table + idf"
    assert found["systems"][1]["config"] == (
        f"--config.model.pretrained={words} --config.model.encoder=none --config.model.token_weights=idf "
        "--config.model.pooling=mean"
    )
    assert "test: 80 questions, 40 candidates" in shown
    assert "best on held out: token table + idf; as a tower: --config" in shown
    rows = [*csv.DictReader((tmp_path / "precision_recall.csv").read_text().splitlines())]
    curve = [(float(row["recall"]), float(row["precision"])) for row in rows if row["system"] == "token table + idf"]
    assert curve == sorted(curve, key=lambda point: point[0])
    assert curve[-1][0] == 1


def test_elmos_file_is_made_of_the_texts_that_are_written_for_it(squad, tmp_path, reproduce, run):
    h5py = pytest.importorskip("h5py")
    texts, file = tmp_path / "texts.txt", tmp_path / "elmo.hdf5"
    arguments = [f"--model={file}", f"--data={squad}"]
    said = reproduce("layers", *arguments, f"--write-texts={texts}").out
    lines = texts.read_text().splitlines()
    assert f"wrote {len(lines)} texts" in said
    assert lines[-1] == "Cats number 69 . Dogs number 69 . Nothing of 69 ."
    with h5py.File(file, "w") as written:
        for number, line in enumerate(lines):
            tokens = line.split(" ")
            assert tokens == split_words(line)
            # The first layer knows the words; the others tell texts apart by nothing that questions share.
            layers = [[vector(w) for w in tokens], *([vector(f"{n} {number}")] * len(tokens) for n in (1, 2))]
            written.create_dataset(str(number), data=np.array(layers, np.float32))
    found, _ = run(*arguments)
    assert found["layers"] == ["layer 0", "layer 1", "layer 2"]
    systems = {system["system"]: system for system in found["systems"]}
    assert [*systems][:5] == ["layer 0", "layer 1", "layer 2", "mean of layers", "best mixture"]
    assert systems["best mixture + idf"]["layer_weights"][0] >= 0.5
    assert found["best"] in ("layer 0 + idf", "best mixture + idf")
    recall = {name: system["metrics"]["test"]["recall@1"] for name, system in systems.items()}
    assert recall["layer 0 + idf"] > 0.5 > 0.2 > recall["layer 1 + idf"]


@pytest.mark.slow
def test_a_models_layers_and_the_config_of_one(squad, tiny_bert, run):
    found, _ = run(f"--model={tiny_bert}", f"--data={squad}")
    assert found["layers"] == ["token table", "encoder input", "layer 1", "layer 2"]
    configs = {system["system"]: system["config"] for system in found["systems"]}
    assert "--config.model.encoder=none" in configs["token table"]
    assert '--config.model.layer_weights="(0.0, 0.0, 1.0, 0.0)"' in configs["layer 1 + idf"]
    assert "layer_weights" not in configs["layer 2"]
    assert len({json.dumps(system["metrics"]) for system in found["systems"]}) > 6


def test_a_model_that_is_not_there_is_one_line(squad, tmp_path, reproduce):
    arguments = [f"--model={tmp_path / 'none.hdf5'}", f"--data={squad}", f"--output={tmp_path}"]
    reproduce("layers", *arguments, status=2)
