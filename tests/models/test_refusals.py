"""Settings, configs and inputs of models that are refused: the call, and the field and remedy that its line names."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers import ONE_LAYER, T5_SHAPE, TINY, padded, texts, tower
from refusals import check_refusal
from tiny_bert import write_tiny_bert
from tiny_models import TEXTS, make_model

from endx_jax.encoders.t5 import T5Config
from endx_jax.models import SIDES, DualEncoder, TokenEmbedder, Tower, TransformerEncoder
from endx_jax.models.layout import Padded
from endx_jax.models.lora import LoraSettings
from endx_jax.models.sharing import SHARINGS
from endx_jax.models.static import StaticConfig
from endx_jax.settings import from_mapping

BERT = tower(ONE_LAYER, projection=5)
PLAIN = dataclasses.replace(BERT, projection=None)
T5 = Tower(TokenEmbedder(50, 8), TransformerEncoder(T5_SHAPE))
HUGGING_FACE = {"vocab_size": 20, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_kv": 4, "d_ff": 12}
BY_TOKEN = {"pooling": "tokens", "projection": 4}


def lora(**values):
    from_mapping(LoraSettings, values, "model.lora")


def t5(**changes):
    T5Config.from_hugging_face(HUGGING_FACE | changes)


def buckets(distance, count):
    t5(relative_attention_max_distance=distance, relative_attention_num_buckets=count)


def encoded(length):
    given = np.zeros((1, length, 16)), Padded(np.ones((1, length), bool))
    jax.eval_shape(TransformerEncoder(TINY).init, jax.random.key(0), *given)


def shared(question, answer, sharing):
    jax.eval_shape(DualEncoder(question, answer, SHARINGS[sharing]).init, jax.random.key(0))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: lora(targets="a("), ["model.lora.targets", "'a('", "regular expression"]),
        (lambda: shared(BERT, T5, "sde"), ["token_embedder", "model.pretrained", "model.answer_pretrained"]),
        (lambda: shared(BERT, T5, "ade_spl"), ["projection", "model.pretrained", "model.answer_pretrained"]),
        (lambda: shared(PLAIN, PLAIN, "ade_spl"), ["projection", "set model.projection"]),
        (lambda: StaticConfig.from_hugging_face({"vocab_size": 7}), ["config.json", "hidden_size"]),
        (lambda: t5(feed_forward_proj="gated-relu"), ["feed_forward_proj='gated-relu'", "'relu'"]),
        (lambda: buckets(8, 32), ["relative_attention_max_distance", "32 buckets", "8", "from 9 to 65,536"]),
        (lambda: buckets(2, 8), ["relative_attention_max_distance", "8 buckets", "2", "from 3 to 65,536"]),
        (lambda: buckets(2**24, 32), ["relative_attention_max_distance", "16777216", "from 2 to 65,536"]),
        (lambda: encoded(33), ["33 tokens", "32 positions"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_possible(call, named):
    check_refusal(call, *named)


def test_token_embeddings_without_the_tokens_or_where_one_vector_is_needed_are_refused(tiny_bert, tmp_path):
    skipping = {"tokens": {"skip": ("cat", "zebra")}}
    check_refusal(
        lambda: make_model(tiny_bert, **BY_TOKEN, **skipping), "model.tokens.skip", "'zebra'", "leave them out"
    )
    made = make_model(tiny_bert, **BY_TOKEN)
    queries = made.encode_query(TEXTS)
    check_refusal(lambda: made.similarity_pairwise(queries, queries), "similarity_pairwise", "one vector for each text")
    check_refusal(lambda: made.comparable("answer", TEXTS), "one vector for each text")
    folder = write_tiny_bert(tmp_path)
    for file in folder.glob("*token*.json"):
        file.write_text(file.read_text().replace('"mask_token"', '"other_token"'))
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    check_refusal(lambda: make_model(folder, **BY_TOKEN, tokens={"expand": 8}), "[MASK]", "set model.tokens.expand=0")


def test_a_side_that_is_none_is_a_mistake_of_the_program():
    assert "questions" not in SIDES
    with pytest.raises(KeyError, match="questions"):
        DualEncoder(BERT, BERT, SHARINGS["ade"]).encode({}, "questions", padded(texts((5,)), 6))


def test_the_smallest_distance_that_is_allowed_fills_all_buckets():
    from endx_jax.models.layers import relative_position_buckets

    for count in (8, 32):
        buckets(count // 4 + 1, count)
        found = relative_position_buckets(np.arange(-99, 100), count, count // 4 + 1)
        assert (found.min(), found.max()) == (0, count - 1)
