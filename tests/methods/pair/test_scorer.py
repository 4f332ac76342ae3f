"""The scorer of pairs against one pair at a time."""

import jax
import numpy as np
import pytest
from helpers import initial_params

from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.methods.pair.batches import join_texts
from endx_jax.methods.pair.classifier import PairClassifier
from endx_jax.methods.pair.evaluator import ClassifierScorer
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.pretrained import load_encoder
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder

QUESTIONS = ["where is the cat", "who?", "what is on the mat", ""]
ANSWERS = ["the cat", "the dog sat " * 9, "a mat 🙂", "on", "in a mat on a mat"]


@pytest.fixture(scope="module")
def parts(tiny_bert):
    """A classifier, parameters for it, and how texts become tokens."""
    source = load_encoder(str(tiny_bert))
    sources = {"question": source, "answer": source}
    settings = ModelSettings(pretrained=str(tiny_bert), pooling="first")
    model = build_dual_encoder(settings, sources)
    classifier = PairClassifier(model)
    tower = initial_params(model, settings, sources, jax.random.key(0))
    params = {"dual_encoder": tower, "pair": classifier.init(jax.random.key(1), tower)}
    tokenizer = Tokenizer(tiny_bert)
    return classifier, params, {"question": TextProcessor(tokenizer, 20), "answer": TextProcessor(tokenizer, 30)}


@pytest.mark.parametrize("devices", [1, 8])
def test_scores_come_in_the_order_of_the_pairs_whatever_their_lengths(parts, devices):
    classifier, params, processors = parts
    rows = np.random.default_rng(0).permutation(np.indices((len(QUESTIONS), len(ANSWERS))).reshape(2, -1).T)
    rows = np.concatenate([rows, rows[:3]])
    mesh = make_mesh(MeshSettings(), jax.devices()[:devices])
    found = ClassifierScorer(classifier, processors, mesh)(params, QUESTIONS, ANSWERS)(rows)
    assert found.shape == (23,)
    np.testing.assert_allclose(found[-3:], found[:3], atol=1e-5)
    tokens = [processors[side](texts) for side, texts in (("question", QUESTIONS), ("answer", ANSWERS))]
    table = join_texts(*tokens, rows)
    whole = table.pad(np.arange(len(rows)), 49)
    expected = jax.jit(classifier.score)(params["dual_encoder"], params["pair"], whole)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(expected) > 1e-2
