import json

import numpy as np
import pytest

from endx_jax.errors import EndxError
from endx_jax.retrieval.index import read_index, write_index

EMBEDDINGS = np.arange(6, dtype=np.float32).reshape(3, 2)
IDS, TEXTS = ["d0", "d1", "d2"], ["eins", "zwei\nZeilen", "drei ≠"]


def write(folder, embeddings=EMBEDDINGS):
    write_index(folder, embeddings, IDS, TEXTS, model={"step": 3})


def test_what_is_written_is_read(tmp_path):
    write(tmp_path / "index")
    embeddings, ids, texts, manifest = read_index(tmp_path / "index")
    np.testing.assert_array_equal(embeddings, EMBEDDINGS)
    assert (ids, texts) == (IDS, TEXTS)
    assert (manifest["documents"], manifest["width"], manifest["model"]) == (3, 2, {"step": 3})


def test_a_newer_index_takes_the_place_of_the_old(tmp_path):
    write(tmp_path / "index")
    write(tmp_path / "index", EMBEDDINGS + 1)
    np.testing.assert_array_equal(read_index(tmp_path / "index")[0], EMBEDDINGS + 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_a_write_that_fails_leaves_the_old_one_and_nothing_else(tmp_path):
    write(tmp_path / "index")
    with pytest.raises(ValueError, match="zip"):
        write_index(tmp_path / "index", EMBEDDINGS, IDS, TEXTS[:2], model={})
    np.testing.assert_array_equal(read_index(tmp_path / "index")[0], EMBEDDINGS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_a_folder_without_an_index_is_refused(tmp_path):
    with pytest.raises(EndxError, match="holds no index"):
        read_index(tmp_path)


def test_an_index_that_lost_a_document_is_refused(tmp_path):
    write(tmp_path)
    lines = (tmp_path / "documents.jsonl").read_text().splitlines()
    (tmp_path / "documents.jsonl").write_text("\n".join(lines[:2]) + "\n")
    with pytest.raises(EndxError, match="not whole: 2 documents, 3 embeddings"):
        read_index(tmp_path)


def test_an_index_never_unpickles(tmp_path):
    write(tmp_path)
    np.save(tmp_path / "embeddings.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(EndxError, match="holds no index"):
        read_index(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["documents"] == 3
