"""Packages that are not installed: what needs one says in a line how to install it."""

import sys

import numpy as np
import pytest
from helpers import written
from refusals import check_refusal

from endx_jax.cli import export, serve
from endx_jax.data import read
from endx_jax.data.chat import Chat
from endx_jax.data.sets.documents import Document
from endx_jax.index.index import Index, write_index
from endx_jax.planning.chips import CHIPS
from endx_jax.planning.topologies import devices_of, topology_of
from endx_jax.ranking.bm25 import BM25
from endx_jax.training.metric_log import check_installed


def search(folder, engine):
    write_index(folder / "i", np.ones((1, 2), "f4"), [Document("a", "a")], metric="cosine", model={})
    Index(folder / "i", engine=engine)


# The call, which gets a folder, by the modules that are missing; and the words of the line.
MISSING = {
    "Stemmer": (lambda _: BM25.of_texts(["a"]), "BM25 PyStemmer"),
    "faiss": (lambda folder: search(folder, "hnsw"), "'hnsw' faiss [search]"),
    "fastapi endx_jax.serving.app": (lambda _: serve.main(["--index=nowhere"]), "server [serve]"),
    "jax_plugins": (lambda _: devices_of(topology_of(CHIPS["H200"], 8)), "H200 compile-gpu [compile-gpu]"),
    "libtpu": (lambda _: devices_of(topology_of(CHIPS["v5e"], 8)), "v5e compile-tpu [compile-tpu]"),
    "openai": (lambda _: Chat("http://127.0.0.1:9", {"model": "m"}).ask("a"), "openai [generate]"),
    "pyarrow": (lambda folder: read(folder / "x.parquet"), "parquet pyarrow [data]"),
    "sentence_transformers": (
        lambda folder: export.main(["--model=nowhere", f"--output={folder / 'out'}", "--verify"]),
        "runtime 'sentence-transformers>=6.2'",
    ),
    "wandb": (lambda _: check_installed("papers"), "train.wandb_project [wandb]"),
}


@pytest.mark.parametrize("modules", MISSING)
def test_a_missing_package_is_named_with_its_extra(modules, tmp_path, monkeypatch):
    if modules == "pyarrow":
        pytest.importorskip("pyarrow")
        written(tmp_path / "x.parquet", [{"question": "q", "answer": "a"}])
    call, words = MISSING[modules]
    for module in modules.split():
        monkeypatch.setitem(sys.modules, module, None)
    check_refusal(lambda: call(tmp_path), "pip install" if "[" in words else "", *words.split())
    assert not (tmp_path / "out").exists()
