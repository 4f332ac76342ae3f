import numpy as np
import pytest

from endx_jax.data.sets.documents import Document
from endx_jax.index.index import Index, write_index
from endx_jax.index.index_file import COSINE

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")


CUT = "cut 1 texts to 65,535 bytes, the limit of Milvus"


@pytest.fixture
def index(tmp_path) -> Index:
    documents = [Document("d/0", "a cat", {"title": "Cats"}), Document("d/1", "é" * 40_000), Document("d/2", "a dog")]
    made_by = {"name": "m", "identity": "1"}
    write_index(tmp_path / "index", np.eye(3, dtype="f4"), documents, metric=COSINE, model=made_by)
    return Index(tmp_path / "index")


def test_an_index_is_published_and_says_so(index, tmp_path, endx):
    to = str(tmp_path / "there.db")
    arguments = [f"--index={index.path}", f"--to={to}", "--collection=animals"]
    said = endx("publish", *arguments).out.splitlines()
    assert said == [f"copied 3 documents of {index.path} to collection animals at {to}", CUT]
    index.delete(["d/1"])
    first, deleted = endx("publish", *arguments).out.splitlines()
    assert first == f"copied 2 documents of {index.path} to collection animals at {to}"
    assert deleted == "deleted 1 document from the collection that were deleted from the index"


def test_the_token_comes_from_the_environment(index, monkeypatch, variables, endx):
    given = {}

    class Refusing:
        def __init__(self, address, **options):
            from pymilvus import MilvusException

            given.update(options, address=address)
            raise MilvusException(message="no\nentry")

    monkeypatch.setattr("pymilvus.MilvusClient", Refusing)
    variables(MILVUS_TOKEN="root:secret")
    refused = endx("publish", f"--index={index.path}", "--to=https://cluster:19530", "--collection=a", status=2)
    assert (given["address"], given["token"]) == ("https://cluster:19530", "root:secret")
    assert refused.err == "endx publish: https://cluster:19530: no entry\n"
