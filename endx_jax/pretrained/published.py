"""Configs of published encoders by hub id, so that models can be described without a download.

Each entry holds the keys of the published `config.json` that our towers read, without those that have the values of
their families, which are defaults (T5 v1.1:
google-research/text-to-text-transfer-transformer, released_checkpoints.md; BERT: Devlin et al. 2019, section 3; the
others: their hub folders). `load_encoder` finds weights and tokenizers.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from endx_jax.pretrained.checkpoint import PretrainedEncoder, load_encoder
from endx_jax.pretrained.locate import MINILM
from endx_jax.pretrained.sentence_transformers import Dense, Head
from endx_jax.pretrained.token_embeddings import PretrainedTokens, load_tokens

GTE = "Alibaba-NLP/gte-modernbert-base"
QWEN3 = "Qwen/Qwen3-Embedding-{}"
GEMMA = "google/embeddinggemma-300m"


def _t5(width: int, mlp_width: int, layers: int, heads: int) -> dict:
    return {
        "model_type": "t5",
        "feed_forward_proj": "gated-gelu",
        "vocab_size": 32128,
        "d_model": width,
        "d_kv": 64,
        "d_ff": mlp_width,
        "num_layers": layers,
        "num_heads": heads,
    }


def _bert(width: int, layers: int, heads: int) -> dict:
    return {
        "model_type": "bert",
        "vocab_size": 30522,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 512,
    }


def _qwen3(width: int, mlp_width: int, layers: int, heads: int, vocab_size: int, positions: int) -> dict:
    return {
        "model_type": "qwen3",
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": mlp_width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": positions,
        "rope_theta": 1_000_000,
    }


CONFIGS: Mapping[str, dict] = {
    "google/t5-v1_1-small": _t5(512, 1024, 8, 6),
    "google/t5-v1_1-base": _t5(768, 2048, 12, 12),
    "google/t5-v1_1-large": _t5(1024, 2816, 24, 16),
    "google/t5-v1_1-xl": _t5(2048, 5120, 24, 32),
    "google/t5-v1_1-xxl": _t5(4096, 10240, 24, 64),
    "google-bert/bert-base-uncased": _bert(768, 12, 12),
    "google-bert/bert-large-uncased": _bert(1024, 24, 16),
    MINILM: _bert(384, 6, 12),
    GTE: {
        "model_type": "modernbert",
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "pad_token_id": 50283,
    },
    QWEN3.format("0.6B"): _qwen3(1024, 3072, 28, 16, 151669, 32768),
    QWEN3.format("4B"): _qwen3(2560, 9728, 36, 32, 151665, 40960),
    QWEN3.format("8B"): _qwen3(4096, 12288, 36, 32, 151665, 40960),
    GEMMA: {
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 24,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "sliding_window": 512,
        "use_bidirectional_attention": True,
    },
}
# Heads of published folders that differ from mean pooling alone.
_HEADS: Mapping[str, dict[str, Any]] = {
    MINILM: {"normalize": True, "max_length": 256},
    GTE: {"pooling": "first"},
    **{QWEN3.format(size): {"pooling": "last", "normalize": True} for size in ("0.6B", "4B", "8B")},
    GEMMA: {
        "projection": Dense(pathlib.Path("3_Dense"), 768, before=Dense(pathlib.Path("2_Dense"), 3072)),
        "normalize": True,
        "max_length": 2048,
    },
}
_OTHER_NAMES = {hub_id.partition("/")[2]: hub_id for hub_id in CONFIGS}  # without their owners


def outline(name: str) -> PretrainedEncoder:
    """Describes the encoder `name`; reads no files if its config is in `CONFIGS`.

    Then its `folder` may not exist, and weights and tokenizer cannot be read.
    """
    return PretrainedEncoder(**_described(name)) if is_known(name) else load_encoder(name)


def outline_tokens(name: str) -> PretrainedTokens:
    """Describes the token table of the model `name`, like `outline`."""
    return PretrainedTokens(**_described(name)) if is_known(name) else load_tokens(name)


def is_known(name: str) -> bool:
    """Returns true if the config of `name` is in `CONFIGS`; a local folder of that name takes precedence."""
    return _OTHER_NAMES.get(name, name) in CONFIGS and not pathlib.Path(name).is_dir()


def _described(name: str) -> dict:
    hub_id, folder = _OTHER_NAMES.get(name, name), pathlib.Path(name)
    return {"folder": folder, "head": Head(folder, **_HEADS.get(hub_id, {})), "hugging_face": CONFIGS[hub_id]}
