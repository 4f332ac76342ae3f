"""Embeddings against sentence-transformers: the real model on real text, and folders that the library writes."""

import gzip
import json

import jax
import numpy as np
import pytest
from helpers import initial_params
from tiny_bert import WIDTH

from endx_jax import pretrained
from endx_jax.data.tokenization import Tokenizer
from endx_jax.models import stack
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder, fill_in

pytestmark = [pytest.mark.slow, pytest.mark.reference]

SENTENCES = [
    "Which NFL team represented the AFC at Super Bowl 50?",
    "Denver Broncos",
    "Super Bowl 50 was an American football game to determine the champion of the 2015 season.",
    "What day was the game played on?",
    "The game was played on February 7, 2016, at Levi's Stadium in Santa Clara, California.",
    "Who was Rollo's forefather? (He, among others, gave Normandy its name.)",
    "The Normans (Norman: Nourmands; French: Normands; Latin: Normanni) came in the 10th and 11th centuries.",
    "E = mc² is 100% true; naïve façades don't matter.",
    "東京 is the capital of 日本.",
    "a",
    "",
    "Many words " * 300,  # cut at the model's limit
]


def ours(source, texts, **changes) -> np.ndarray:
    """Embeddings in one batch, padded to the longest text, of a model with changed settings."""
    settings = fill_in(ModelSettings(normalize=source.head.normalize, **changes), source)
    model = build_dual_encoder(settings, {"question": source, "answer": source})
    params = initial_params(model, settings, {"question": source, "answer": source}, jax.random.key(0))
    table = Tokenizer(source.folder)(texts, source.head.max_length)
    tokens = table.pad(np.arange(len(texts)), int(table.lengths.max()))
    return np.asarray(jax.jit(model.encode, static_argnames="side")(params, side="answer", texts=tokens))


@pytest.fixture(scope="module")
def library():
    """sentence-transformers, which takes seconds to import."""
    import sentence_transformers

    return sentence_transformers


@pytest.fixture(scope="module")
def reference(library, minilm):
    return library.SentenceTransformer(str(pretrained.locate(minilm)), device="cpu")


@pytest.mark.parametrize("scanned_from", [100, 1])
def test_the_real_model_embeds_as_sentence_transformers_does(minilm, reference, scanned_from, monkeypatch):
    monkeypatch.setattr(stack, "SCANNED_FROM", scanned_from)
    found = ours(pretrained.load_encoder(minilm), SENTENCES)
    np.testing.assert_allclose(found, reference.encode(SENTENCES), rtol=0, atol=1e-5)


def test_the_real_model_on_two_hundred_texts_of_squad(minilm, reference, test_data):
    with gzip.open(test_data / "data" / "squad" / "dev-v1.1.json.gz", "rt", encoding="utf-8") as stream:
        articles = json.load(stream)["data"]
    paragraphs = [article["paragraphs"][0] for article in articles]
    questions = [qa["question"] for paragraph in paragraphs for qa in paragraph["qas"]][:160]
    contexts = [paragraph["context"] for paragraph in paragraphs][:40]
    assert len(questions + contexts) == 200
    source = pretrained.load_encoder(minilm)
    for texts in (questions, contexts):  # apart, so that questions are not padded to the length of contexts
        np.testing.assert_allclose(ours(source, texts), reference.encode(texts), rtol=0, atol=1e-5)


def test_the_real_model_in_bfloat16_stays_near(minilm, reference):
    """Measured: cosines with the float32 reference are 3e-5 short of 1, similarities 2e-3 off."""
    texts = SENTENCES[:8]
    found, expected = ours(pretrained.load_encoder(minilm), texts, dtype="bfloat16"), reference.encode(texts)
    assert np.abs(np.sum(found * expected, axis=1) - 1).max() < 2e-4
    assert np.abs(found @ found.T - expected @ expected.T).max() < 5e-3


@pytest.mark.parametrize(("mode", "pooling"), [("mean", "mean"), ("cls", "first")])
@pytest.mark.parametrize("normalize", [False, True])
def test_folders_that_the_library_writes_are_read(library, tiny_bert, tmp_path, mode, pooling, normalize):
    from sentence_transformers.sentence_transformer import modules

    parts = [modules.Transformer(str(tiny_bert), max_seq_length=20), modules.Pooling(WIDTH, pooling_mode=mode)]
    model = library.SentenceTransformer(modules=parts + [modules.Normalize()] * normalize, device="cpu")
    model.save_pretrained(str(tmp_path))
    source = pretrained.load_encoder(str(tmp_path))
    assert (source.head.pooling, source.head.normalize, source.head.max_length) == (pooling, normalize, 20)
    texts = ["the cat sat on a mat", "who?", "what is in the dog and where is it, then, if not on the mat"]
    np.testing.assert_allclose(ours(source, texts), model.encode(texts), rtol=0, atol=1e-5)
