"""The parts of the pair classifier, and the scorer of many pairs; test_cross_encoder compares it with transformers."""

import dataclasses

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import mesh_of, padded, random_params, texts, tower
from small_records import records_of

from endx_jax.data.sets.records import Pools
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.methods.pair.batches import join_texts
from endx_jax.methods.pair.classifier import PairClassifier, Pooler
from endx_jax.methods.pair.evaluator import ClassifierScorer, PairEvaluator
from endx_jax.methods.pair.objective import PairSettings
from endx_jax.models import DualEncoder
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.pooling import first
from endx_jax.ranking.words import WordTokenizer

QUESTIONS = ["where is the cat?", "who sat [SEP] on a mat", "🙂", ""]
ANSWERS = ["the cat sat on the mat.", "a dog, where is a dog", "in"]
TINY = dataclasses.replace(helpers.TINY, layers=1)


def classifier(config=TINY, **options):
    one = tower(config, pooling=first)
    return PairClassifier(DualEncoder(one, one), **options)


def draw(module):
    """Parameters of its tower and of its head."""
    own = {"shared": random_params(module.model.question, padded(texts([3]), 4))}
    return own, random_params(module.head, jnp.zeros((1, TINY.width)), seed=1)


def pairs(lengths, seconds, width):
    return dataclasses.replace(jax.device_get(padded(texts(lengths), width)), second=np.array(seconds, np.int32))


def test_a_token_stands_in_the_segment_of_its_text():
    module = classifier()
    score, params = jax.jit(module.score), draw(module)
    same = padded(texts([6]) * 4, 8)
    found = score(*params, dataclasses.replace(same, second=np.array([2, 3, 6, 7], np.int32)))
    assert abs(found[0] - found[1]) > 1e-3
    assert abs(found[1] - found[2]) > 1e-3
    np.testing.assert_allclose(found[2:], score(*params, same)[2:], rtol=1e-6)


@pytest.mark.parametrize("pooler", [Pooler(), None])
def test_the_score_is_linear_in_the_pooled_vector_of_cls_or_without_a_pooler_in_the_vector(pooler):
    module = classifier(pooler=pooler)
    params, head = draw(module)
    assert set(head) == ({"pooler", "classifier"} if pooler else {"classifier"})
    some = pairs([3, 7], [2, 3], 8)
    encodings = jax.jit(lambda: module.model.encodings(params, "question", some))()
    vectors = encodings[:, 0]
    if pooler:
        vectors = np.tanh(vectors @ head["pooler"]["kernel"] + head["pooler"]["bias"][None])
    expected = vectors @ head["classifier"]["kernel"][:, 0] + head["classifier"]["bias"]
    np.testing.assert_allclose(jax.jit(module.score)(params, head, some), expected, rtol=1e-5)


def test_dropout_is_of_the_key_of_each_pair():
    module = classifier(dataclasses.replace(TINY, dropout=0.3))
    params = draw(module)
    some = pairs([5, 5], [2, 3], 8)
    turned = jax.tree.map(lambda x: x[::-1], some)

    @jax.jit
    def compute():
        keys = jax.random.split(jax.random.key(3, impl="threefry2x32"), 2)
        scores = [module.score(*params, *given) for given in ((some, keys), (some,), (turned, keys[::-1]))]
        return *scores, module.head.apply({"params": params[1]}, jnp.ones((2, TINY.width)), keys)

    both, plain, others, of_equal_vectors = jax.device_get(compute())
    assert abs(both - plain).min() > 1e-4
    np.testing.assert_allclose(others, both[::-1], rtol=1e-5)
    assert np.ptp(of_equal_vectors) > 1e-4


def test_a_pool_is_counted_once_for_all_validations_and_only_ranked_answers_are_tokenized(tiny_bert, monkeypatch):
    split, read, words_of, tokenized = [], [], WordTokenizer.documents, ClassifierScorer.tokenized
    noted = lambda self, texts: split.extend(texts) or words_of(self, texts)  # noqa: E731
    monkeypatch.setattr(WordTokenizer, "documents", noted)
    monkeypatch.setattr(ClassifierScorer, "tokenized", lambda self, *of: read.extend(of[1]) or tokenized(self, *of))
    module = classifier(dataclasses.replace(TINY, vocab_size=300, positions=64))
    params = draw(module)
    processors = dict.fromkeys(SIDES, TextProcessor(Tokenizer(tiny_bert), 20))
    evaluator = PairEvaluator(ClassifierScorer(module, processors, mesh_of(1)), PairSettings(top=1))
    records = records_of([(0,), (2,)], ["the cat", "a dog", "the mat"], ["cat", "mat"])
    for _ in range(2):
        evaluator.evaluate({"dual_encoder": params[0], "pair": params[1]}, Pools({"all": records}))
    assert (split, read) == ([*records.candidates], 2 * ["the cat", "the mat"])


@pytest.mark.parametrize("devices", [1, 8])
def test_scores_come_in_the_order_of_the_pairs_whatever_their_lengths(tiny_bert, devices):
    tokenizer = Tokenizer(tiny_bert)
    processors = {"question": TextProcessor(tokenizer, 20), "answer": TextProcessor(tokenizer, 30)}
    module = classifier(dataclasses.replace(TINY, vocab_size=300, positions=64))
    params, answers = draw(module), [*ANSWERS, "the dog sat " * 9, "in a mat on a mat"]
    rows = np.random.default_rng(0).permutation(np.indices((len(QUESTIONS), len(answers))).reshape(2, -1).T)
    rows = np.concatenate([rows, rows[:3]])
    scorer = ClassifierScorer(module, processors, mesh_of(devices))
    found = scorer({"dual_encoder": params[0], "pair": params[1]}, QUESTIONS, answers)(rows)
    assert found.shape == (23,)
    np.testing.assert_allclose(found[-3:], found[:3], atol=1e-5)
    table = join_texts(processors["question"](QUESTIONS), processors["answer"](answers), rows)
    expected = jax.jit(module.score)(*params, table.pad(np.arange(len(rows)), 49))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(expected) > 1e-2
