"""The real model against sentence-transformers: scanned, in bfloat16, and on texts that are hard to cut into tokens.

`minilm.npz` has what sentence-transformers embeds of `SENTENCES`, and the versions that did it:
`SentenceTransformer("all-MiniLM-L6-v2", device="cpu").encode(SENTENCES)`.
"""

import pathlib

import jax
import numpy as np
import pytest
from helpers import initial_params

from endx_jax import pretrained
from endx_jax.data.tokenization import Tokenizer
from endx_jax.models import stack
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder, fill_in

pytestmark = pytest.mark.slow
EXPECTED = np.load(pathlib.Path(__file__).with_name("minilm.npz"))["embeddings"]

SENTENCES = [
    "Which NFL team represented the AFC at Super Bowl 50?",
    "Denver Broncos",
    "The game was played on February 7, 2016, at Levi's Stadium in Santa Clara, California.",
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


@pytest.mark.parametrize("scanned_from", [100, 1])
def test_the_real_model_embeds_as_sentence_transformers_does(minilm, scanned_from, monkeypatch):
    monkeypatch.setattr(stack, "SCANNED_FROM", scanned_from)
    found = ours(pretrained.load_encoder(minilm), SENTENCES)
    np.testing.assert_allclose(found, EXPECTED, rtol=0, atol=1e-5)


def test_the_real_model_in_bfloat16_stays_near(minilm):
    """Measured: cosines with the float32 reference are 3e-5 short of 1, similarities 2e-3 off."""
    found, expected = ours(pretrained.load_encoder(minilm), SENTENCES[:6], dtype="bfloat16"), EXPECTED[:6]
    assert np.abs(np.sum(found * expected, axis=1) - 1).max() < 2e-4
    assert np.abs(found @ found.T - expected @ expected.T).max() < 5e-3
