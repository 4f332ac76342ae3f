import pathlib
import random
import re

import numpy as np
import pytest
from helpers import written

import endx_jax
from endx_jax.index.index import Index

WORDS = "the cat sat on a mat dog where is who what in".split()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> pathlib.Path:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=n % 9)) for n in range(200)]
    rows = [{"_id": f"doc {n}", "title": f"t {n}", "text": text} for n, text in enumerate(texts)]
    return written(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", rows)


def test_documents_that_are_cut_are_counted_and_no_known_questions(trained_workdir, tmp_path, endx):
    path = written(tmp_path / "corpus.jsonl", [{"text": "the cat " * n} for n in (1, 20, 30)])
    shown = endx("encode", f"--workdir={trained_workdir}", f"--corpus={path}", f"--output={tmp_path / 'index'}").out
    start = "2 of 3 texts reach the limit of 24 tokens: only their beginnings are embedded; split them into passages"
    assert shown.splitlines()[-1] == f"{start}, or train with a larger data.answer_length"
    assert Index(tmp_path / "index").snapshot.info.precision == "float32"
    path = written(tmp_path / "pairs.csv", f"question,answer\n{'cat ' * 40},mat\n{'dog ' * 40},rug\n")
    said = endx("encode", f"--workdir={trained_workdir}", f"--corpus={path}", f"--output={tmp_path / 'i'}").out
    assert "2 documents with 2 known questions" in said
    assert "reach the limit" not in said


def test_an_index_holds_what_the_model_says(bert_workdir, corpus, tmp_path, endx):
    output = tmp_path / "index"
    arguments = [f"--workdir={bert_workdir}", f"--corpus={corpus}", f"--output={output}"]
    arguments += ["--precision=int8", "--truncate-dim=8", "--product-dtype=bfloat16"]
    before = "encoding 200 documents; programs are compiled the first time only"
    after = r"encoded 200 documents in \d+ s, [\d,]+ a second"
    shown = endx("encode", *arguments).out
    assert re.fullmatch(rf"200 documents in {corpus}\n{before}\n{after}\nthe index is {output}\n", shown)
    index, model = Index(output), endx_jax.load(bert_workdir, product_dtype="bfloat16")
    assert (index.snapshot.info.metric, index.snapshot.info.precision, index.snapshot.info.width) == (
        "cosine",
        "int8",
        8,
    )
    assert index.snapshot.info.model["identity"] == model.identity == endx_jax.load(bert_workdir).identity
    assert index.snapshot.info.model["product_dtype"] == "bfloat16"
    documents = [document for _, document in index.snapshot]
    assert (documents[128].id, documents[128].metadata) == ("doc 128", {"title": "t 128"})
    texts = [document.text for document in documents]
    expected = model.encode_document(texts, truncate_dim=8, normalize_embeddings=True)
    np.testing.assert_allclose(index.snapshot.vectors(0, 200), expected, atol=1 / 254)
    assert endx("encode", *arguments).out.endswith(f"{output} is their index already; nothing to encode\n")
    assert "product_dtype bfloat16, not float32" in endx("encode", *arguments[:-1], status=2).err
