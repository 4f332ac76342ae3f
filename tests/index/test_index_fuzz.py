import contextlib
import sqlite3

import numpy as np
import pytest
from fuzzing import damaged_bytes, damaged_json, fuzzed, only_user_errors
from hypothesis import given
from hypothesis import strategies as st
from small_index import make_index

from endx_jax.data.sets.documents import Document
from endx_jax.index.index import Index
from endx_jax.numerics import Quantized


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> bytes:
    """The file of an index of int8 embeddings, with an added and a deleted document."""
    codes = Quantized(np.arange(6, dtype=np.int8).reshape(3, 2), np.float32([1, 2, 3]))
    index = make_index(tmp_path_factory.mktemp("sound") / "index", codes)
    index.add([Document("d3", "vier")], np.float32([[1, 2]]))
    index.delete(["d1"])
    index.snapshot.corpus.search(np.ones((1, 2), np.float32), 2)  # compiled here, and not within the limit on memory
    return index.path.read_bytes()


def read(index):
    str(index)
    for _, document in index.snapshot:
        assert isinstance(document.id, str)
        assert isinstance(document.text, str)


def search(index):
    if index.snapshot.info.width == 2:
        index.search([""], 2, mode="dense", embeddings=np.ones((1, 2), np.float32), where={"year": {"gte": 1}})


def add(index):
    index.add([Document("new", "text"), Document("d0", "text")], np.ones((2, 2), np.float32), replace=True)


def delete(index):
    index.delete(["new", "d2"])


def use_all(path):
    for use in (read, search, add, delete):
        with only_user_errors():
            use(Index(path))


@fuzzed
@given(data=st.data())
def test_no_damaged_file_gives_a_traceback(sound, tmp_path, data):
    for name in ("index", "index-wal", "index-shm", "index-journal"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "index").write_bytes(data.draw(damaged_bytes(sound)))
    use_all(tmp_path / "index")


@fuzzed
@given(field=st.sampled_from(["width", "precision", "metric", "model", "corpus", "content"]), data=st.data())
def test_no_description_gives_a_traceback(sound, tmp_path, field, data):
    (tmp_path / "index").write_bytes(sound)
    written = data.draw(damaged_json(b'{"name": "m", "identity": "1", "shard": [1, 2], "of": [2, "float32"]}'))
    with contextlib.closing(sqlite3.connect(tmp_path / "index")) as database, database:
        database.execute("UPDATE about SET value = ? WHERE key = ?", [written.decode(errors="replace"), field])
    use_all(tmp_path / "index")
