"""Property test: whatever is in the files of an index, opening, reading, searching and changing it raises EndxError."""

import functools
import shutil

import numpy as np
import pytest
from fuzzing import damaged_bytes, damaged_json, damaged_json_lines, fuzzed, only_user_errors
from hypothesis import given
from hypothesis import strategies as st

from endx_jax.data.documents import Document
from endx_jax.numerics import Quantized
from endx_jax.retrieval.corpus_encoding import _read
from endx_jax.retrieval.index import Index, write_index

MODEL = {"name": "somebody", "identity": "0123456789abcdef"}
DOCUMENTS = [Document("a", "eins"), Document("b", "zwei\nZeilen", {"source": "≠", "year": 3}), Document("c", "")]
ENCODING = (
    b'{"model": {"name": "m", "identity": "1"}, "corpus": {"path": "c", "documents": 3, "sha256": "2"},'
    b' "side": "document", "width": 2, "precision": "int8", "metric": "cosine", "shard_size": 2}'
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The folder of an index with two shards of int8 embeddings and a deleted document."""
    folder = tmp_path_factory.mktemp("sound") / "index"
    codes = Quantized(np.arange(6, dtype=np.int8).reshape(3, 2), np.float32([1, 2, 3]))
    write_index(folder, codes, DOCUMENTS, metric="cosine", model=MODEL)
    index = Index(folder)
    index.add([Document("d", "vier")], np.float32([[1, 2]]))
    index.delete(["b"])
    assert len(index.manifest.shards) == 2
    index.search(np.ones((1, 2), np.float32), 2)  # compiled here, and not within the limit on memory
    return folder


def damaged(name: str, contents: bytes) -> st.SearchStrategy:
    if name.endswith(".jsonl"):
        return damaged_json_lines(contents)
    return damaged_json(contents) if name.endswith(".json") else damaged_bytes(contents)


@functools.cache
def strategies(folder) -> dict[str, st.SearchStrategy]:
    files = sorted(file for file in folder.iterdir() if file.suffix in (".json", ".jsonl", ".npy"))
    return {file.name: damaged(file.name, file.read_bytes()) for file in files}


@fuzzed
@given(data=st.data())
def test_no_file_of_an_index_gives_a_traceback(sound, tmp_path, data):
    name = data.draw(st.sampled_from([*strategies(sound)]))
    contents = data.draw(strategies(sound)[name])
    folder = tmp_path / "index"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    (folder / name).write_bytes(contents)
    for use in (read, search, add, delete, compact):
        with only_user_errors():
            use(Index(folder))


def read(index):
    index.check_model("m", MODEL["identity"])
    for _, document in index.snapshot.documents():
        assert isinstance(document.id, str)
        assert isinstance(document.text, str)


def search(index):
    if index.manifest.width == 2:
        index.search(np.ones((1, 2), np.float32), 2)


def add(index):
    index.add([Document("new", "text"), Document("a", "text")], np.ones((2, 2), np.float32), replace=True)


def delete(index):
    index.delete(["new", "c"])


def compact(index):
    index.compact()


@fuzzed
@given(contents=damaged_json(ENCODING))
def test_no_description_of_an_encoding_gives_a_traceback(tmp_path, contents):
    (tmp_path / "encoding.json").write_bytes(contents)
    with only_user_errors():
        read = _read(tmp_path / "encoding.json")
        read.differences(read)
