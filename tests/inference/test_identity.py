import copy
import dataclasses
import functools

import jax
import numpy as np
import pytest
from helpers import TINY, padded, random_params, texts, tower

from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.encoders.t5 import T5Config
from endx_jax.inference.identity import describe_tower, model_identity
from endx_jax.models import DualEncoder, TransformerEncoder
from endx_jax.models.pooling import MultiHopAttention, first
from endx_jax.models.sharing import SHARINGS
from endx_jax.models.static import TokenWeights


@pytest.fixture(scope="module")
def processor(tiny_bert):
    return TextProcessor(Tokenizer(tiny_bert), 16)


def identity(processor, *, params=None, answer=None, towers=None, **parts):
    """Of a Siamese encoder of tiny towers; `answer` prepares its answers otherwise."""
    one = tower(**parts)
    model = DualEncoder(*(towers or (one, one)))
    return model_identity(model, params or zeros(model), {"question": processor, "answer": answer or processor})


@functools.cache
def zeros(model):
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), jax.eval_shape(model.init, jax.random.key(0)))


def test_the_same_model_has_the_same_identity_whatever_it_costs_and_how_it_trains(processor, tiny_bert):
    found, again = identity(processor), TextProcessor(Tokenizer(tiny_bert), 16)
    config = dataclasses.replace(TINY, dropout=0.3, product_dtype="bfloat16")
    assert found == identity(again) == identity(processor, dtype="bfloat16", remat="full", config=config)
    assert len(f"{int(found, 16):064x}") == len(found) == 64


def test_changes_that_affect_embeddings_change_the_identity(processor):
    found = {
        "as it is": identity(processor),
        "length": identity(dataclasses.replace(processor, length=15)),
        "prompt": identity(dataclasses.replace(processor, prompt="query: ")),
        "answer's prompt": identity(processor, answer=dataclasses.replace(processor, prompt="query: ")),
        "norm": identity(processor, normalize=False),
        "pooling": identity(processor, pooling=first),
        "hops": identity(processor, pooling=MultiHopAttention(2, 4)),
        "heads": identity(processor, config=dataclasses.replace(TINY, heads=4)),
        "layers": identity(processor, layer_weights=(0.5, 0.5, 0.0, 0.0)),
        "weights of tokens": identity(processor, token_weights=TokenWeights(TINY.vocab_size)),
        "answer's pooling": identity(processor, towers=(tower(), tower(pooling=first))),
    }
    assert len(set(found.values())) == len(found)


def test_parts_that_came_later_are_named_where_a_tower_has_them():
    named = str(describe_tower(tower()))
    assert not any(part in named for part in ("head'", "token_weights", "layer_weights"))


def test_families_that_had_modules_of_their_own_are_described_as_they_were():
    sizes = (("vocab_size", 50), ("width", 16), ("layers", 2), ("heads", 2))
    read = (("mlp_width", 24), ("positions", 32), ("token_types", 2), ("activation", "gelu"))
    bert = ("BertConfig", *sizes, *read, ("norm_epsilon", 1e-12), ("pad_id", 0))
    assert describe_tower(TransformerEncoder(TINY)) == ("BertEncoder", ("config", bert))
    t5 = T5Config(vocab_size=50, width=16, layers=2, heads=2, head_width=4, mlp_width=24)
    read = (("head_width", 4), ("mlp_width", 24), ("buckets", 32), ("max_distance", 128), ("norm_epsilon", 1e-6))
    expected = ("T5Config", *sizes, *read, ("pad_id", 0), ("positions", None))
    assert describe_tower(TransformerEncoder(t5)) == ("T5Encoder", ("config", expected))
    plain = dataclasses.replace(t5, gated=False)
    assert describe_tower(TransformerEncoder(plain)) == ("T5Encoder", ("config", (*expected, ("gated", False))))


def test_one_number_or_the_place_of_parameters_changes_the_identity(processor):
    params = copy.deepcopy(zeros(DualEncoder(tower(), tower())))
    before, norm = identity(processor, params=params), params["shared"]["encoder"]["norm"]
    norm["bias"][3] = 1e-30
    assert identity(processor, params=params) != before
    norm["bias"][3] = 0
    norm["shift"] = norm.pop("bias")
    assert identity(processor, params=params) != before
    model = DualEncoder(tower(), tower(), SHARINGS["ade"])
    params = {side: random_params(tower(), padded(texts((3, 2)), 4)) for side in ("question", "answer")}
    swapped = {"question": params["answer"], "answer": jax.tree.map(np.negative, params["question"])}
    both = {"question": processor, "answer": processor}
    assert model_identity(model, params, both) != model_identity(model, swapped, both)
