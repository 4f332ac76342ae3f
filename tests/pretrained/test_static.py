import gzip
import json
import os

import huggingface_hub
import numpy as np
import pytest
from fake_hub import use_hub
from helpers import times
from refusals import check_refusal
from safetensors.numpy import save_file
from tiny_bert import vocabulary, write_tokenizer

import endx_jax
from endx_jax import pretrained
from endx_jax.data.tokenization import Tokenizer
from endx_jax.pretrained.static import read_word_vectors, static_folder, word_splitter

WORDS = ["the", "cat", "'s", "mat", "?", "n't", "do", "u.s.", "1,000", "."]
VECTORS = np.arange(30, dtype=np.float32).reshape(10, 3) / 7


def write_glove(path, words=WORDS, header="", vectors=VECTORS):
    lines = [f"{word} {' '.join(f'{value:.6f}' for value in row)}\n" for word, row in zip(words, vectors, strict=True)]
    text = (header + "".join(lines)).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def rows(name, text):
    """The token vectors that a text is made of."""
    tokens = pretrained.load_tokens(str(name))
    table = tokens.params()["token_embedder"]["embedding"]
    return table[Tokenizer(tokens.folder)([text], 99).ids]


def vector(word):
    return VECTORS[WORDS.index(word)]


@pytest.mark.parametrize(("name", "header"), [("v.txt", ""), ("v.txt.gz", ""), ("v.vec", "10 3\n")])
def test_words_of_a_text_file_find_their_vectors(tmp_path, name, header):
    file = write_glove(tmp_path / name, header=header)
    found = rows(file, "The cat's mat?")
    np.testing.assert_allclose(found, [vector(w) for w in ("the", "cat", "'s", "mat", "?")], atol=1e-6)
    np.testing.assert_allclose(rows(file, "don’t"), [vector("do"), vector("n't")], atol=1e-6)


@pytest.mark.parametrize("named", ["a file", "a folder"])
def test_vectors_that_replace_others_of_one_size_and_time_are_read(tmp_path, token_vectors, named):
    source = tmp_path / "v.vec" if named == "a file" else token_vectors[0]
    replaced = source if named == "a file" else source / "model.safetensors"
    found = []
    for scale in (1, 2):
        fresh = tmp_path / "fresh.vec"
        if named == "a file":
            write_glove(fresh, vectors=VECTORS * scale)
        else:
            save_file({"embeddings": token_vectors[1] * scale}, fresh)
        os.utime(fresh, (1_700_000_000, 1_700_000_000))
        fresh.replace(replaced)  # as rsync and package managers do
        found.append(rows(source, "the cat"))
    np.testing.assert_allclose(found[1], found[0] * 2, atol=1e-5)


def test_no_text_is_cut(tmp_path):
    found = endx_jax.load(write_glove(tmp_path / "v.txt")).encode(["the " * 600 + "cat " * 1400])[0]
    np.testing.assert_allclose(found, 0.3 * vector("the") + 0.7 * vector("cat"), rtol=1e-4)


def test_text_is_cut_as_the_treebank_does():
    text = "It's the U.S.! He didn't pay 1,000.50 (well-known) “quotes”…"
    assert [word for word, _ in word_splitter().pre_tokenize_str(text)] == [
        *("It", "'s", "the", "U.S.", "!", "He", "did", "n't", "pay", "1,000.50"),
        *("(", "well", "-", "known", ")", "“", "quotes", "”", "…"),
    ]


def test_a_word_without_a_vector_does_not_count(tmp_path):
    model = endx_jax.load(write_glove(tmp_path / "v.txt"))
    known, more, nothing = model.encode_query(["the cat", "the zebra cat", "zebra"])
    np.testing.assert_allclose(known / np.linalg.norm(known), more / np.linalg.norm(more), atol=1e-6)
    np.testing.assert_array_equal(nothing, np.zeros(3))
    np.testing.assert_allclose(known, (vector("the") + vector("cat")) / 2, atol=1e-6)


def test_capitals_count_where_there_are_any_and_the_first_of_equal_words(tmp_path):
    file = write_glove(tmp_path / "v.txt", ["The", "the", *WORDS[2:]])
    np.testing.assert_allclose(rows(file, "The the"), VECTORS[:2], atol=1e-6)
    file = write_glove(tmp_path / "v.txt", ["the", "the", ". . .", *WORDS[3:]])
    words, vectors = read_word_vectors(file)
    assert words[:3] == ["the", "the", ". . ."]
    np.testing.assert_allclose(vectors, VECTORS, atol=1e-6)
    np.testing.assert_allclose(rows(file, "the"), VECTORS[:1], atol=1e-6)


def test_a_folder_is_made_once_for_each_state_of_the_file(tmp_path):
    file = write_glove(tmp_path / "v.txt")
    first = static_folder(str(file))
    before = times(first)
    assert static_folder(str(file)) == first
    assert times(first) == before
    write_glove(file, ["a", *WORDS[1:]])
    assert static_folder(str(file)) != first


@pytest.mark.parametrize("line", ["cat 1 2", "cat 1 2 x", "cat 1 2 1e99", "", "cat 1 2 nan", "cat 1 2 inf"])
def test_a_broken_line_is_named(tmp_path, line):
    (tmp_path / "v.txt").write_text(f"the 1 2 3\n{line}\nmat 1 2 3\n")
    check_refusal(lambda: static_folder(str(tmp_path / "v.txt")), "v.txt", "line 2", "3 numbers")


@pytest.fixture
def token_vectors(tmp_path):
    """Such a folder as model2vec writes: with a tokenizer that adds special tokens, and names no padding."""
    folder = tmp_path / "vectors"
    folder.mkdir()
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").unlink()
    table = np.random.default_rng(0).normal(size=(len(vocabulary()), 4)).astype(np.float16)
    save_file({"embeddings": table}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    return folder, table


def test_token_vectors_of_the_hub_are_those_of_a_folder(token_vectors, monkeypatch):
    folder, _ = token_vectors
    use_hub(monkeypatch)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    np.testing.assert_array_equal(rows("some/vectors", "the cat"), rows(folder, "the cat"))


def test_token_vectors_are_pooled_without_special_tokens(token_vectors):
    folder, table = token_vectors
    ids = [vocabulary().index(word) for word in ("the", "cat")]
    np.testing.assert_array_equal(rows(folder, "the cat"), table[ids])
    tokenizer = folder / "tokenizer.json"
    whole = tokenizer.read_text()
    tokenizer.write_text(whole.replace('"the"', '"dog?"').replace('"cat"', '"the"'))
    np.testing.assert_array_equal(rows(folder, "the"), table[ids[1:]])
    tokenizer.write_text(whole)
    save_file({"vectors": table}, folder / "model.safetensors")
    check_refusal(lambda: static_folder(str(folder)), "embedding.weight", "has no token table")
    # As sentence-transformers writes them.
    (folder / "config.json").unlink()
    save_file({"embedding.weight": table}, folder / "model.safetensors")
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    ids.append(vocabulary().index("[UNK]"))
    np.testing.assert_array_equal(rows(folder, "the cat §"), table[ids])


def test_texts_are_cut_as_the_tokenizer_s_file_states(token_vectors):
    folder, table = token_vectors
    file = folder / "tokenizer.json"
    cut = {"direction": "Left", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncation": cut}))
    last = table[[vocabulary().index(word) for word in ("cat", "sat")]]
    found = endx_jax.load(folder).encode(["the cat sat"])[0]
    np.testing.assert_allclose(found, last.astype(np.float32).mean(0), rtol=1e-5)


def test_rows_that_tokens_share_and_their_weights_are_model2vec_s(token_vectors):
    folder, table = token_vectors
    names, draw = vocabulary(), np.random.default_rng(1)
    mapping, weights = draw.integers(0, 9, len(names)), draw.normal(size=len(names)).astype(np.float32)
    save_file({"embeddings": table[:9], "mapping": mapping, "weights": weights}, folder / "model.safetensors")
    ids = [names.index("the"), names.index("cat")]
    expected = table[mapping[ids]].astype(np.float32) * weights[ids, None]
    np.testing.assert_allclose(rows(folder, "the cat §"), [*expected, [0, 0, 0, 0]], rtol=1e-6)
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    found = endx_jax.load(folder).encode(["the cat §"])[0]
    np.testing.assert_allclose(found, expected.mean(0) / np.linalg.norm(expected.mean(0)), rtol=1e-5)
    save_file({"embeddings": table, "bias": weights}, folder / "model.safetensors")
    check_refusal(lambda: static_folder(str(folder)), "the weights have a tensor 'bias'")


@pytest.mark.reference
def test_modules_after_token_vectors_and_prompts_are_those_of_sentence_transformers(token_vectors, tmp_path):
    import sentence_transformers as library
    import sentence_transformers.sentence_transformer.modules as parts
    import tokenizers

    folder, table = token_vectors
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    own.enable_truncation(2, direction="left")
    modules = [parts.StaticEmbedding(own, embedding_weights=table.astype(np.float32))]
    dense = parts.Dense(4, 3)
    for n, more in enumerate(([], [parts.Normalize()], [dense])):
        reference = library.SentenceTransformer(modules=[*modules, *more], prompts={"query": "who "}, device="cpu")
        reference.save(str(tmp_path / f"{n}"))
        if more == [dense]:
            check_refusal(lambda n=n: endx_jax.load(tmp_path / f"{n}"), "modules.json: only Normalize", "not Dense")
        else:
            found = endx_jax.load(tmp_path / f"{n}").encode_query(["the cat", "mat"])
            np.testing.assert_allclose(found, reference.encode_query(["the cat", "mat"]), atol=1e-6)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, variables):
    (tmp_path / "cache").write_text("")
    variables(XDG_CACHE_HOME=str(tmp_path / "cache"))
    vectors = write_glove(tmp_path / "v.txt")
    check_refusal(lambda: static_folder(str(vectors)), "set XDG_CACHE_HOME to a writable folder")
