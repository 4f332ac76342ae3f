import json
import pathlib
import random
import re

import numpy as np
import pytest
from helpers import written

import endx_jax
from endx_jax.index.corpus_encoding import Encoding, encode_corpus
from endx_jax.index.index import Index

WORDS = "the cat sat on a mat dog where is who what in".split()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> pathlib.Path:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=n % 9)) for n in range(200)]
    rows = [{"_id": f"doc {n}", "title": f"t {n}", "text": text} for n, text in enumerate(texts)]
    return written(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", rows)


def test_documents_that_are_cut_are_counted_and_no_known_questions(trained_workdir, tmp_path, endx):
    path = written(tmp_path / "corpus.jsonl", "".join(json.dumps({"text": "the cat " * n}) + "\n" for n in (1, 20, 30)))
    shown = endx("encode", f"--workdir={trained_workdir}", f"--corpus={path}", f"--output={tmp_path / 'index'}").out
    start = "2 of 3 texts reach the limit of 24 tokens: only their beginnings are embedded; split them into passages"
    assert shown.splitlines()[-1] == f"{start}, or train with a larger data.answer_length"
    path = written(tmp_path / "pairs.csv", f"question,answer\n{'cat ' * 40},mat\n{'dog ' * 40},rug\n")
    said = endx("encode", f"--workdir={trained_workdir}", f"--corpus={path}", f"--output={tmp_path / 'i'}").out
    assert "2 documents with 2 known questions" in said
    assert "reach the limit" not in said


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_an_index_holds_what_the_model_says(trained_workdir, corpus, tmp_path, endx, precision):
    output = tmp_path / "index"
    arguments = [f"--workdir={trained_workdir}", f"--corpus={corpus}", f"--output={output}"]
    arguments += [f"--precision={precision}", "--truncate-dim=8"]
    before = "encoding 200 documents; programs are compiled the first time only"
    after = r"encoded 200 documents in \d+ s, [\d,]+ a second"
    shown = endx("encode", *arguments).out
    assert re.fullmatch(rf"200 documents in {corpus}\n{before}\n{after}\nthe index is {output}\n", shown)
    index, model = Index(output), endx_jax.load(trained_workdir)
    assert (index.snapshot.info.metric, index.snapshot.info.precision, index.snapshot.info.width) == (
        "cosine",
        precision,
        8,
    )
    assert index.snapshot.info.model["identity"] == model.identity
    documents = [document for _, document in index.snapshot]
    assert (documents[128].id, documents[128].metadata) == ("doc 128", {"title": "t 128"})
    texts = [document.text for document in documents]
    expected = model.encode_document(texts, truncate_dim=8, normalize_embeddings=True)
    tolerance = {"float32": 1e-6, "float16": 1e-3, "int8": 1 / 254}[precision]
    np.testing.assert_allclose(index.snapshot.vectors(0, 200), expected, atol=tolerance)
    assert endx("encode", *arguments).out.endswith(f"{output} is their index already; nothing to encode\n")
    encoding = Encoding(precision, 8)
    assert encode_corpus(trained_workdir, str(corpus), tmp_path / "again", encoding) == tmp_path / "again"
    again = Index(tmp_path / "again").snapshot.vectors(0, 200)
    np.testing.assert_array_equal(again, index.snapshot.vectors(0, 200))


def test_shards_are_encoded_and_joined_and_embeddings_reused(trained_workdir, corpus, tmp_path, endx):
    arguments = [f"--workdir={trained_workdir}", f"--corpus={corpus}"]
    shards = [tmp_path / "1", tmp_path / "2"]
    for n, shard in enumerate(shards, start=1):
        assert "encoded 100 documents" in endx("encode", *arguments, f"--shard={n}/2", f"--output={shard}").out
    said = endx("encode", "--join", *map(str, shards), f"--output={tmp_path / 'all'}").out
    assert said == f"200 documents of 2 shards; the index is {tmp_path / 'all'}\n"
    lines = corpus.read_text().splitlines()
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join([*lines[5:], json.dumps({"_id": "new", "text": "a new text"})]))
    again = [arguments[0], f"--corpus={changed}", f"--output={tmp_path / 'new'}", f"--reuse={tmp_path / 'all'}"]
    assert f"encoded 1 document, took over 195 of {tmp_path / 'all'} in" in endx("encode", *again).out
    found = Index(tmp_path / "new").snapshot
    texts = [document.text for _, document in found]
    expected = endx_jax.load(trained_workdir).encode_document(texts, normalize_embeddings=True)
    np.testing.assert_allclose(found.vectors(0, 196), expected, atol=1e-6)


def test_an_index_says_by_what_products_its_embeddings_were_made(tiny_bert, corpus, tmp_path, endx):
    small = written(tmp_path / "small.jsonl", "\n".join(corpus.read_text().splitlines()[:6]))
    arguments = [f"--model={tiny_bert}", f"--corpus={small}", f"--output={tmp_path / 'index'}"]
    endx("encode", *arguments, "--product-dtype=bfloat16")
    index, models = Index(tmp_path / "index"), {}
    for name in (None, "bfloat16"):
        models[name] = endx_jax.load(tiny_bert, product_dtype=name)
    assert index.snapshot.info.model["product_dtype"] == models["bfloat16"].product_dtype == "bfloat16"
    assert models[None].product_dtype == "float32"
    assert index.snapshot.info.model["identity"] == models[None].identity == models["bfloat16"].identity
    texts = [document.text for _, document in index.snapshot]
    exact, found = (models[n].encode_document(texts, normalize_embeddings=models[n].cosine) for n in models)
    np.testing.assert_array_equal(index.snapshot.vectors(0, len(texts)), found)
    assert 1e-6 < np.abs(exact - found).max() < 2**-6 * np.abs(exact).max()
    refused = "holds another index: product_dtype bfloat16, not float32. Choose another output"
    assert refused in endx("encode", *arguments, status=2).err
    reused = endx("encode", *arguments[:2], f"--output={tmp_path / 'b'}", f"--reuse={tmp_path / 'index'}", status=2)
    assert "is another index: product_dtype bfloat16, not float32; name another, or leave it out" in reused.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--product-dtype=float16"], "product_dtype is float16: hidden layers exceed its largest number"),
        (["--truncate-dim=33"], "truncate_dim=33: embeddings of .* have 32 dimensions"),
        (["--truncate-dim=0"], "truncate_dim=0: embeddings"),
        (["--batch-size=0"], "batch_size is 0; it must be from 1"),
        (["--shard=3/2"], "shard=3/2: shards are numbered from 1 to 2"),
        (["--shard=0/2"], "shard=0/2: shards are numbered from 1 to 2"),
        (["--shard=half"], "--shard=half: give the number of the shard and of all shards, such as 1/8"),
        (["--text-column=body"], "line 1: no column 'body'"),
        (["--pool=answers"], "only reading-comprehension data can be split into answers"),
        (["--reuse=nowhere"], "nowhere is no file of an index"),
    ],
)
def test_invalid_arguments_are_refused(tiny_bert, corpus, tmp_path, endx, arguments, reason):
    common = [f"--model={tiny_bert}", f"--corpus={corpus}", f"--output={tmp_path / 'new'}"]
    assert re.search(reason, endx("encode", *common, *arguments, status=2).err)
    assert not (tmp_path / "new").exists()


def test_missing_arguments_are_named(tiny_bert, corpus, endx):
    assert "nothing to encode: set --corpus" in endx("encode", f"--model={tiny_bert}", status=2).err
    sharded = [f"--model={tiny_bert}", f"--corpus={corpus}", "--shard=1/2"]
    assert "shard needs output=FILE, a file for each shard" in endx("encode", *sharded, status=2).err
    assert "--join needs --output=FILE" in endx("encode", "--join", "a", "b", status=2).err
