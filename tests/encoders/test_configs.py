"""Configs in the notations of published folders, and what they refuse."""

import dataclasses

import numpy as np
import pytest
from refusals import check_refusal
from tiny_bert import sizes

from endx_jax.encoders import ARCHITECTURES
from endx_jax.encoders.llama import LlamaConfig
from endx_jax.models.layers import Rope
from endx_jax.models.transformer_config import LayerKind

SMALL = sizes(24, layers=4, heads=2, mlp_width=40, positions=16, vocab_size=60)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
NOMIC = {"vocab_size": 60, "n_embd": 24, "n_layer": 4, "n_head": 2, "n_inner": 40, "n_positions": 16}
NOMIC |= {"activation_function": "swiglu", "rotary_emb_base": 500, "qkv_proj_bias": False}
NOMIC |= {"auto_map": {"AutoModel": "modeling.Model"}}


def read(model_type, config):
    return ARCHITECTURES[model_type].config.from_hugging_face({"model_type": model_type, **config})


def ropes(full: dict) -> dict:
    return {"full_attention": full, "sliding_attention": {"rope_theta": 90.0}}


@pytest.mark.parametrize("model_type", sorted({*ARCHITECTURES} - {"new", "static"}))
def test_absent_keys_have_the_defaults_of_transformers(model_type):
    config = pytest.importorskip("transformers").CONFIG_MAPPING[model_type]
    encoder = "EncoderModel" if "t5" in model_type else "Model"
    assert ARCHITECTURES[model_type].transformers_class == config.__name__.removesuffix("Config") + encoder
    t5 = {"d_model": 24, "d_kv": 12, "d_ff": 40, "num_layers": 4, "num_heads": 2}
    own = {"vocab_size": 60000, **t5} if "t5" in model_type else SMALL | {"vocab_size": 60000}
    if issubclass(ARCHITECTURES[model_type].config, LlamaConfig):
        own["num_key_value_heads"] = 1
    every = config(**own).to_dict()
    written = {config.attribute_map.get(name, name) for name in own} | {*own}
    given = {name: value for name, value in every.items() if name in written}
    ours, theirs = (read(model_type, values) for values in (given, every))
    head = {} if "t5" in model_type else {"head_width": theirs.head}
    pad = {} if theirs.after_padding else {"pad_id": theirs.pad_id}  # no vector depends on it
    assert dataclasses.replace(ours, **head, **pad) == dataclasses.replace(theirs, **head)


KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
GROUPED = SMALL | {"num_key_value_heads": 1, "sliding_window": 512}
PATTERN = {"layer_types": ["sliding_attention", "full_attention"] * 2}
LINEAR = {"rope_type": "linear", "factor": 8.0}
# Keys of a hub folder or of transformers 4, and of transformers 5.
NOTATIONS = [
    ("nomic_bert", NOMIC, SMALL | {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}),
    (
        "modernbert",
        SMALL
        | {"global_attn_every_n_layers": 3, "local_attention": 8, "global_rope_theta": 900.0, "local_rope_theta": 90.0},
        SMALL | {"layer_types": KINDS, "local_attention": 8, "rope_parameters": ropes({"rope_theta": 900.0})},
    ),
    (
        "llama",
        SMALL | {"rope_theta": 500_000.0, "rope_scaling": LLAMA3},
        SMALL | {"rope_parameters": LLAMA3 | {"rope_theta": 500_000.0}},
    ),
    (
        "gemma3_text",
        GROUPED
        | {"rope_theta": 900.0, "rope_local_base_freq": 90.0, "rope_scaling": LINEAR, "_sliding_window_pattern": 2},
        GROUPED | PATTERN | {"rope_parameters": ropes(LINEAR | {"rope_theta": 900.0})},
    ),
    # Scaling that is added to a file of transformers 5.
    (
        "llama",
        SMALL | {"rope_parameters": {"rope_theta": 900.0}, "rope_scaling": LINEAR, "rope_theta": 5.0},
        SMALL | {"rope_parameters": LINEAR | {"rope_theta": 5.0}},
    ),
    (
        "gemma3_text",
        GROUPED | PATTERN | {"rope_parameters": ropes({"rope_theta": 900.0}), "rope_scaling": LINEAR},
        GROUPED | PATTERN | {"rope_parameters": ropes(LINEAR | {"rope_theta": 900.0})},
    ),
]


@pytest.mark.parametrize(("model_type", "older", "newer"), NOTATIONS)
def test_configs_in_an_older_notation_are_those_in_the_newer_one(model_type, older, newer):
    assert read(model_type, older) == read(model_type, newer)


def test_kinds_of_layers_have_their_own_positions_and_windows():
    (_, modern, _), _, (_, gemma, _) = NOTATIONS[1:4]
    assert read("modernbert", modern).kinds[:2] == (LayerKind(Rope(900.0), None, False), LayerKind(Rope(90.0), 4, True))
    assert read("gemma3_text", gemma).kinds[:2] == (LayerKind(Rope(90.0), 511), LayerKind(Rope(900.0, "linear", 8.0)))
    both_ways = read("gemma3_text", gemma | {"use_bidirectional_attention": True})
    assert (both_ways.causal, both_ways.kinds[0].window) == (False, 256)


def test_the_fixed_scaling_of_gte_multilingual():
    """By kexue.fm/archives/9706 (6): a base 8 times as large, and frequencies divided by 8^(2 / Dh)."""
    scaled = {"rope_theta": 20000, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    rope = read("new", SMALL | scaled).rope
    assert rope == Rope(160_000.0, "linear", 8.0 ** (2 / 12))
    by_hand = 8.0 ** -(2 / 12) * 160_000.0 ** -(np.arange(6) / 6)
    np.testing.assert_allclose(rope.frequencies(12), by_hand)


def test_the_last_layers_of_qwen_may_have_windows():
    changes = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3, "num_key_value_heads": 1}
    assert [kind.window for kind in read("qwen3", SMALL | changes).kinds] == [None, None, None, 7]


@pytest.mark.parametrize("pad_id", [0, 1, 7, None, -1])
def test_mpnet_s_positions_begin_after_1_and_others_take_any_padding_id(pad_id):
    assert read("mpnet", SMALL | {"pad_token_id": pad_id}) == read("mpnet", SMALL | {"pad_token_id": 1})
    assert read("bert", SMALL | {"pad_token_id": pad_id}).first_position == 0


def test_positions_after_the_padding_id_are_fewer():
    found = read("roberta", SMALL | {"pad_token_id": 1})
    assert (found.positions, found.first_position) == (14, 2)


@pytest.mark.parametrize(
    ("model_type", "changes", "named"),
    [
        ("roberta", {"pad_token_id": 16}, ["max_position_embeddings", "17"]),
        ("bert", {"transformers_weights": "other.safetensors"}, ["transformers_weights='other.safetensors'"]),
        ("modernbert", {"layer_types": ["full_attention"]}, ["layer_types", "['full_attention']"]),
        ("modernbert", {"mlp_bias": "no"}, ["mlp_bias", "'no'", "true or false"]),
        ("modernbert", {"rope_scaling": {"rope_type": "yarn"}}, ["rope_type", "'yarn'", "default, lin"]),
        ("modernbert", {"rope_parameters": {"full_attention": 5}}, ["full_attention", "rotary", "object"]),
        ("nomic_bert", {"rope_parameters": 7}, ["rotary", "object"]),
        ("modernbert", {"num_attention_heads": 8}, ["heads are 3 wide", "even"]),
        ("nomic_bert", {"prenorm": True}, ["prenorm=True"]),
        ("nomic_bert", {"rotary_emb_fraction": 0.5}, ["rotary_emb_fraction=0.5"]),
        ("gte", {"logn_attention_scale": True}, ["logn_attention_scale=True"]),
        ("albert", {"num_hidden_groups": 2}, ["num_hidden_groups=2"]),
        ("qwen3", {"layer_types": ["chunked_attention"] * 4}, ["layer_types", "'chunked_attention'"]),
        ("llama", {"num_key_value_heads": 3}, ["2 attention heads", "3 heads of keys"]),
        ("llama", {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, ["high_freq_factor 1", "low_freq_factor"]),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["low_freq_factor, high_freq_factor"]),
        ("llama", {"rope_theta": 0}, ["rope_theta", "0", "from 1 to"]),
        ("llama", {"quantization_config": {"bits": 4}}, ["quantization_config={'bits': 4}"]),
        ("mistral", {"sliding_window": "wide"}, ["sliding_window", "'wide'", "whole number"]),
        ("mistral", {"layer_types": ["full_attention"] * 4}, ["layer_types=['full_attention'"]),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping=50.0"]),
        ("gemma3_text", {"sliding_window_pattern": 0}, ["sliding_window_pattern", "0", "from 1"]),
    ],
)
def test_what_is_not_supported_is_named_with_its_value(model_type, changes, named):
    check_refusal(lambda: read(model_type, SMALL | changes), *named)
