"""Encoding with a loaded model: prompts, sides, what is no text, and texts that are too long."""

import json
import logging
import shutil

import numpy as np
import pyarrow as pa
import pytest
from refusals import check_refusal
from tiny_bert import write_usage

import endx_jax

TEXTS = ["the cat sat", "dog", ""]


def with_prompt(prompt):
    return [prompt + text for text in TEXTS]


def test_a_model_describes_its_width_lengths_and_prompts(prompted, plain):
    assert prompted.prompts == {"question": "who: ", "answer": "what: "}
    assert (prompted.width, plain.width) == (8, 32)
    assert (prompted.asymmetric, plain.asymmetric) == (True, False)
    assert prompted.cosine
    assert prompted.source.workdir is None
    assert prompted.source.encoders["question"].hugging_face["hidden_size"] == 32
    assert prompted.identity != plain.identity == plain.identity
    # 152 * 32 + 64 * 32 + 2 * 32 of the tables, 64 of their norm, and 8,544 of each of two layers.
    facts = "one tower of TransformerEncoder, mean pooling, cosine, 15,584 parameters)"
    assert repr(plain) == str(plain) == f"EmbeddingModel({plain.name!r}, 32 dimensions, {facts}"
    assert repr(prompted) == f"EmbeddingModel({prompted.name!r}, 8 dimensions, {facts}"


def test_each_side_has_its_prompt_and_a_call_may_have_another(prompted, plain):
    def expected(prompt):
        return plain.encode_query(with_prompt(prompt), truncate_dim=8)

    np.testing.assert_allclose(prompted.encode_query(TEXTS), expected("who: "), atol=1e-6)
    np.testing.assert_allclose(prompted.encode_document(TEXTS), expected("what: "), atol=1e-6)
    np.testing.assert_allclose(prompted.encode_document(TEXTS, prompt_name="cluster"), expected("cat "), atol=1e-6)
    np.testing.assert_allclose(prompted.encode_query(TEXTS, prompt=""), expected(""), atol=1e-6)
    both = prompted.encode_query(TEXTS, prompt="on ", prompt_name="cluster")
    np.testing.assert_allclose(both, expected("on "), atol=1e-6)
    assert np.abs(expected("who: ") - expected("what: ")).max() > 1e-2


def test_the_width_of_the_folder_goes_unless_the_call_has_its_own(prompted, plain):
    whole = prompted.encode_query(TEXTS, truncate_dim=32)
    np.testing.assert_array_equal(prompted.encode_query(TEXTS), whole[:, :8])
    cut = prompted.encode_query(TEXTS, normalize_embeddings=True)
    for encode in (prompted.ranked, prompted.comparable):
        np.testing.assert_allclose(encode("question", TEXTS), cut, atol=1e-6)
    assert prompted.encode_query(TEXTS, truncate_dim=3, normalize_embeddings=True).shape == (3, 3)
    np.testing.assert_allclose(plain.encode(TEXTS, batch_size=np.int64(2)), plain.encode(TEXTS), atol=1e-6)


def test_bare_encode_is_for_models_whose_sides_are_one(prompted, plain):
    np.testing.assert_array_equal(plain.encode(TEXTS), plain.encode_query(TEXTS))
    np.testing.assert_array_equal(prompted.encode(TEXTS, prompt=""), prompted.encode_query(TEXTS, prompt=""))
    named, document = (encode(TEXTS, prompt_name="query") for encode in (prompted.encode, prompted.encode_document))
    np.testing.assert_array_equal(named, document)


def test_bare_encode_has_the_folder_s_default_prompt_and_its_similarity(tiny_bert, tmp_path, plain):
    folder, usage = shutil.copytree(tiny_bert, tmp_path / "model"), {"default_prompt_name": "cluster"}
    model = endx_jax.load(write_usage(folder, prompts={"cluster": "cat "}, similarity_fn_name="dot", **usage))
    assert not model.asymmetric
    np.testing.assert_allclose(model.encode(TEXTS), plain.encode(with_prompt("cat ")), atol=1e-6)
    np.testing.assert_allclose(model.encode_query(TEXTS), plain.encode(TEXTS), atol=1e-6)
    a, b = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[6.0, 8.0], [0.0, 2.0]])
    for loaded, of_all, of_each in (
        (plain, [[1.0, 0.8], [0.6, 0.0]], [1.0, 0.0]),
        (model, [[50.0, 8.0], [6.0, 0.0]], [50.0, 0.0]),
    ):
        np.testing.assert_allclose(loaded.similarity(a, b), of_all, rtol=1e-6)
        np.testing.assert_allclose(loaded.similarity_pairwise(a, b), of_each, rtol=1e-6)


def test_bare_encode_reads_as_much_of_a_text_as_either_side(tiny_bert, tmp_path):
    folder = shutil.copytree(tiny_bert, tmp_path / "model")
    modules = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"query_length": 4, "document_length": 12}))
    model, text = endx_jax.load(folder), "the cat sat on a mat"
    assert not model.asymmetric
    np.testing.assert_array_equal(model.encode(text), model.encode_document(text))
    assert np.abs(model.encode(text) - model.encode_query(text)).max() > 1e-2


def test_texts_come_in_any_shape(plain):
    expected = plain.encode(TEXTS)
    columns = (pa.array(TEXTS), pa.chunked_array([TEXTS[:1], TEXTS[1:]]))
    for sentences in (tuple(TEXTS), np.array(TEXTS), (text for text in TEXTS), dict.fromkeys(TEXTS).keys(), *columns):
        np.testing.assert_array_equal(plain.encode(sentences), expected)
    assert plain.encode([]).shape == (0, 32)
    assert plain.encode("").shape == (32,)
    assert np.isfinite(plain.encode(["", " ", "🙂🏳️‍🌈", "a\x00b", "é" * 500])).all()
    whole, halves, lost = plain.encode(["dog 🙂", "dog \ud83d\ude42", "dog \ud83d"])
    np.testing.assert_array_equal(whole, halves)
    assert np.isfinite(lost).all()


def test_a_table_s_column_is_read_and_a_table_is_not(plain):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.DataFrame({"text": TEXTS, "id": [1, 2, 3]}, index=[7, 5, 3])
    np.testing.assert_array_equal(plain.encode(table["text"]), plain.encode(TEXTS))
    check_refusal(lambda: plain.encode(table), "DataFrame", "(3, 2)", "one of its columns")
    check_refusal(lambda: plain.encode(pd.Series(["a", None])), "sentences[1]", "must be a string")


def test_texts_over_the_length_are_counted_and_told_of_once(tiny_bert, caplog):
    model = endx_jax.load(tiny_bert)  # 64 positions
    short, long = "the " * 62, "the " * 63
    with caplog.at_level(logging.WARNING, "endx_jax"):
        model.encode_query([short, "cat"])
        assert (model.encoder.cut, caplog.messages) == (0, [])
        cut = model.encode_document([long, "cat", long + "dog"])
        model.encode_query([long])
    np.testing.assert_allclose(cut[0], model.encode(short), atol=1e-6)
    assert model.encoder.cut == 3
    (message,) = caplog.messages
    assert message.endswith(
        ": 2 of 3 answers are longer than 64 tokens and were truncated; this warning is not repeated"
    )
