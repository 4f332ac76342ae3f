"""What makes a model another, and what does not."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import TINY, random_params, tower

from endx_jax.data.tokenization import Preparation, Tokenizer
from endx_jax.models import DualEncoder
from endx_jax.models.pooling import MultiHopAttention, first
from endx_jax.models.sharing import SHARINGS
from endx_jax.models.static import TokenWeights
from endx_jax.retrieval.identity import describe, model_identity


@pytest.fixture(scope="module")
def preparation(tiny_bert):
    return Preparation(Tokenizer(tiny_bert), 16)


def identity(preparation, *, params=None, answer=None, towers=None, **parts):
    """Of a Siamese encoder of tiny towers; `answer` prepares its answers otherwise."""
    one = tower(**parts)
    model = DualEncoder(*(towers or (one, one)))
    drawn = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), jax.eval_shape(model.init, jax.random.key(0)))
    return model_identity(model, params or drawn, {"question": preparation, "answer": answer or preparation})


def test_the_same_model_has_the_same_identity(preparation, tiny_bert):
    again = Preparation(Tokenizer(tiny_bert), 16)
    assert identity(preparation) == identity(again)
    assert len(identity(preparation)) == 64
    int(identity(preparation), 16)


def test_what_decides_about_embeddings_decides_about_the_identity(preparation):
    found = {
        "as it is": identity(preparation),
        "length": identity(dataclasses.replace(preparation, length=15)),
        "prompt": identity(dataclasses.replace(preparation, prompt="query: ")),
        "answer's prompt": identity(preparation, answer=dataclasses.replace(preparation, prompt="query: ")),
        "norm": identity(preparation, normalize=False),
        "pooling": identity(preparation, pooling=first),
        "hops": identity(preparation, pooling=MultiHopAttention(2, 4)),
        "reduction": identity(preparation, pooling=MultiHopAttention(2, 4, "sum")),
        "heads": identity(preparation, config=dataclasses.replace(TINY, heads=4)),
        "answer's pooling": identity(preparation, towers=(tower(), tower(pooling=first))),
    }
    assert len(set(found.values())) == len(found)


def test_parts_that_came_later_decide_where_a_tower_has_them(preparation):
    """Where it has none its identity is as it was before, so that indexes of then still serve."""
    named = str(describe(tower()))
    assert not any(part in named for part in ("head'", "token_weights", "layer_weights"))
    found = {
        identity(preparation, **parts)
        for parts in ({}, {"layer_weights": (0.5, 0.5, 0.0, 0.0)}, {"token_weights": TokenWeights(TINY.vocab_size)})
    }
    assert len(found) == 3


def test_one_number_decides(preparation):
    model = DualEncoder(tower(), tower())
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), jax.eval_shape(model.init, jax.random.key(0)))
    before = identity(preparation, params=params)
    params["shared"]["encoder"]["norm"]["bias"][3] = 1e-30
    assert identity(preparation, params=params) != before


def test_where_parameters_stand_decides(preparation):
    model = DualEncoder(tower(), tower(), SHARINGS["ade"])
    params = {side: random_params(tower(), *_tokens()) for side in ("question", "answer")}
    swapped = {"question": params["answer"], "answer": jax.tree.map(np.negative, params["question"])}
    both = {"question": preparation, "answer": preparation}
    assert model_identity(model, params, both) != model_identity(model, swapped, both)


@pytest.mark.parametrize(
    "parts", [{"dtype": "bfloat16"}, {"remat": "full"}, {"config": dataclasses.replace(TINY, dropout=0.3)}]
)
def test_cost_and_training_do_not(preparation, parts):
    assert identity(preparation, **parts) == identity(preparation)


def _tokens():
    from helpers import padded, texts

    return (padded(texts((3, 2)), 4),)
