"""`endx_jax.load` beside sentence-transformers: the real model on real text, and folders that the library writes."""

import numpy as np
import pytest
from tiny_bert import WIDTH, write_tiny_bert

import endx_jax

pytestmark = [pytest.mark.slow, pytest.mark.reference]

TEXTS = ["the cat sat on a mat", "who?", "", "🙂 naïve dogs", "what is in the dog and where is it, if not on the mat"]
PROMPTS = {"query": "who: ", "document": "what: "}


# The modules of a model, given their library (`of`) and a folder.


def bert(of, folder, seed: int = 0, **options):
    return of.Transformer(str(write_tiny_bert(folder / f"bert{seed}", seed, num_hidden_layers=1)), **options)


def dense(of):
    return of.Dense(WIDTH, 6, bias=False, activation_function=None)


def symmetric(of, folder):
    return [bert(of, folder, max_seq_length=20), of.Pooling(WIDTH), dense(of), of.Normalize()]


def asymmetric(of, folder):
    """Two encoders with a length and a pooling each, and after them one projection (ADE-SPL)."""
    query = [bert(of, folder, 0, max_seq_length=12), of.Pooling(WIDTH)]
    document = [bert(of, folder, 1, max_seq_length=20), of.Pooling(WIDTH, "cls")]
    return [of.Router.for_query_document(query, document), dense(of), of.Normalize()]


def apart(of, folder):
    """One encoder, and a projection for each side, in routes of other names."""
    mappings = {("query", None): "ask", (None, "text"): "tell"}
    router = of.Router({"ask": [dense(of)], "tell": [dense(of)]}, route_mappings=mappings)
    return [bert(of, folder), of.Pooling(WIDTH), router]


def of_two_lengths(of, folder):
    return [bert(of, folder, query_length=8, document_length=16), of.Pooling(WIDTH)]


@pytest.mark.parametrize(
    ("modules", "options", "asymmetric"),
    [
        (symmetric, {}, False),
        (symmetric, {"prompts": PROMPTS}, True),
        (symmetric, {"prompts": {"cluster": "cat "}, "default_prompt_name": "cluster"}, False),
        (symmetric, {"truncate_dim": 4}, False),
        (asymmetric, {}, True),
        (asymmetric, {"prompts": PROMPTS, "similarity_fn_name": "dot", "truncate_dim": 4}, True),
        (apart, {"similarity_fn_name": "dot"}, True),
        (of_two_lengths, {}, False),
    ],
)
def test_folders_that_the_library_writes(reference, tmp_path, modules, options, asymmetric):
    reference.torch.manual_seed(1)
    modules_of = modules(reference.modules, tmp_path)
    theirs = reference.library.SentenceTransformer(modules=modules_of, device="cpu", **options)
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
