"""`endx_jax.load` beside sentence-transformers: the real model on real text, and folders that the library writes."""

import gzip
import json
import types

import numpy as np
import pytest
from tiny_bert import WIDTH, write_tiny_bert
from tiny_models import write_tiny_t5

import endx_jax
from endx_jax import pretrained

pytestmark = [pytest.mark.slow, pytest.mark.reference]

TEXTS = ["the cat sat on a mat", "who?", "", "🙂 naïve dogs", "what is in the dog and where is it, if not on the mat"]
PROMPTS = {"query": "who: ", "document": "what: "}


@pytest.fixture(scope="module")
def reference():
    """PyTorch and sentence-transformers, which take seconds to import."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    return types.SimpleNamespace(torch=torch, SentenceTransformer=SentenceTransformer, modules=modules)


def squad_sentences(folder, count: int) -> list[str]:
    """Questions of SQuAD's development set and sentences of their contexts, those of up to 80 characters."""
    with gzip.open(folder / "data" / "squad" / "dev-v1.1.json.gz", "rt", encoding="utf-8") as stream:
        paragraphs = [p for article in json.load(stream)["data"] for p in article["paragraphs"][:20]]
    found = dict.fromkeys(
        text.strip()
        for paragraph in paragraphs
        for text in (paragraph["qas"][0]["question"], *paragraph["context"].split(". "))
        if len(text) <= 80
    )
    return list(found)[:count]


def test_a_thousand_sentences_of_squad(reference, minilm, test_data):
    sentences = squad_sentences(test_data, 1000)
    assert len(sentences) == 1000
    theirs = reference.SentenceTransformer(str(pretrained.locate(minilm)), device="cpu").encode(sentences)
    np.testing.assert_allclose(endx_jax.load(minilm).encode(sentences), theirs, rtol=0, atol=1e-5)


class Parts:
    """Makes modules of sentence-transformers around tiny encoders, in a folder."""

    def __init__(self, reference, folder):
        self.folder, self.torch, self.modules = folder, reference.torch, reference.modules

    def bert(self, seed: int = 0, **options):
        folder = write_tiny_bert(self.folder / f"bert{seed}", seed, num_hidden_layers=1)
        return self.modules.Transformer(str(folder), **options)

    def t5(self, **options):
        return self.modules.Transformer(str(write_tiny_t5(self.folder / "t5")), **options)

    def pooling(self, mode: str = "mean", width: int = WIDTH):
        return self.modules.Pooling(width, mode)

    def dense(self, width: int = WIDTH):
        return self.modules.Dense(width, 6, bias=False, activation_function=self.torch.nn.Identity())

    def normalize(self):
        return self.modules.Normalize()


def symmetric(parts):
    return [parts.bert(max_seq_length=20), parts.pooling(), parts.dense(), parts.normalize()]


def of_t5(parts):
    encoder = parts.t5(max_seq_length=30)
    width = encoder.get_embedding_dimension()
    return [encoder, parts.pooling(width=width), parts.dense(width), parts.normalize()]


def asymmetric(parts):
    """Two encoders with a length and a pooling each, and after them one projection (ADE-SPL)."""
    query = [parts.bert(0, max_seq_length=12), parts.pooling()]
    document = [parts.bert(1, max_seq_length=20), parts.pooling("cls")]
    return [parts.modules.Router.for_query_document(query, document), parts.dense(), parts.normalize()]


def apart(parts):
    """One encoder, and a projection for each side, in routes of other names."""
    routes, mappings = (
        {"ask": [parts.dense()], "tell": [parts.dense()]},
        {("query", None): "ask", (None, "text"): "tell"},
    )
    return [parts.bert(), parts.pooling(), parts.modules.Router(routes, route_mappings=mappings)]


def of_two_lengths(parts):
    return [parts.bert(query_length=8, document_length=16), parts.pooling()]


@pytest.mark.parametrize(
    ("modules", "options", "asymmetric"),
    [
        (symmetric, {}, False),
        (symmetric, {"prompts": PROMPTS}, True),
        (symmetric, {"prompts": {"cluster": "cat "}, "default_prompt_name": "cluster"}, False),
        (of_t5, {"truncate_dim": 4}, False),
        (asymmetric, {}, True),
        (asymmetric, {"prompts": PROMPTS, "similarity_fn_name": "dot", "truncate_dim": 4}, True),
        (apart, {"similarity_fn_name": "dot"}, True),
        (of_two_lengths, {}, False),
    ],
)
def test_folders_that_the_library_writes(reference, tmp_path, modules, options, asymmetric):
    reference.torch.manual_seed(1)
    theirs = reference.SentenceTransformer(modules=modules(Parts(reference, tmp_path)), device="cpu", **options)
    theirs.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    ours = endx_jax.load(tmp_path / "model")

    def check(found, expected):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)

    query, document = ours.encode_query(TEXTS), ours.encode_document(TEXTS)
    check(query, theirs.encode_query(TEXTS))
    check(document, theirs.encode_document(TEXTS))
    check(ours.encode_query(TEXTS, prompt="cat "), theirs.encode_query(TEXTS, prompt="cat "))
    check(ours.similarity(query, document), theirs.similarity(query, document))
    check(ours.similarity_pairwise(query, document), theirs.similarity_pairwise(query, document))
    assert ours.width == theirs.get_embedding_dimension()
    assert ours.asymmetric == asymmetric
    if not asymmetric and modules is not of_two_lengths:  # where theirs has a third length, the tokenizer's
        check(ours.encode(TEXTS), theirs.encode(TEXTS))
