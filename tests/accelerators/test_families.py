"""Training steps of every encoder family, compiled for TPUs and a GPU from its config: of base size, decoders small."""

import json

import pytest
from accelerator_programs import compiled_on, faults

from endx_jax.cli import train
from endx_jax.encoders import ARCHITECTURES

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
BERT = BASE | {"vocab_size": 30522, "max_position_embeddings": 512, "pad_token_id": 0}
ROBERTA = BERT | {"vocab_size": 50265, "max_position_embeddings": 514, "pad_token_id": 1, "type_vocab_size": 1}
ROTARY = BERT | {"vocab_size": 30528, "max_position_embeddings": 8192}
MODERN = {"num_hidden_layers": 22, "intermediate_size": 1152}
T5 = {"vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
GATED = T5 | {"d_ff": 2048, "feed_forward_proj": "gated-gelu"}
GROUPED = BASE | {"num_key_value_heads": 4, "max_position_embeddings": 32768, "pad_token_id": None}
FAMILIES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA | {"vocab_size": 250002},
    "camembert": ROBERTA | {"vocab_size": 32005},
    "electra": BERT | {"embedding_size": 128},
    "distilbert": {"vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}
    | {"max_position_embeddings": 512},
    "mpnet": ROBERTA | {"vocab_size": 30527},
    "albert": BERT | {"vocab_size": 30000, "embedding_size": 128},
    "modernbert": ROTARY | MODERN | {"vocab_size": 50368, "local_attention": 128},
    "nomic_bert": ROTARY | {"rope_parameters": {"rope_theta": 1000.0}},
    "gte": ROTARY | {"type_vocab_size": 0},
    "t5": T5,
    "mt5": GATED | {"vocab_size": 250112},
    "umt5": GATED | {"vocab_size": 256384},
    "llama": GROUPED | {"vocab_size": 128256, "head_dim": 64},
    "eurobert": GROUPED | {"vocab_size": 128256},
    "mistral": GROUPED | {"vocab_size": 32000, "sliding_window": 256},
    "qwen2": GROUPED | {"vocab_size": 151936},
    "qwen3": GROUPED | {"vocab_size": 151669, "head_dim": 128},
    "gemma3_text": GROUPED
    | {"vocab_size": 262144, "head_dim": 256, "num_attention_heads": 3}
    | {"num_key_value_heads": 1, "use_bidirectional_attention": True, "sliding_window": 512},
}
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"head_dim": 32, "intermediate_size": 256, "vocab_size": 512, "sliding_window": 64}
# Layers for GPUs, where layers are unrolled; ModernBERT's pattern needs four. For TPUs all layers are scanned.
FEW = 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*states no pooling")
@pytest.mark.parametrize("topology", ["v5e:4x4", "h200:1"])
@pytest.mark.parametrize("model_type", sorted(set(ARCHITECTURES) - {"new", "static"}))
def test_families(model_type, topology, tmp_path):
    keys = FAMILIES[model_type] | {"model_type": model_type}
    if topology.startswith("h200"):
        keys |= dict.fromkeys(keys.keys() & {"num_hidden_layers", "n_layers", "num_layers"}, FEW)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    config, *_ = train.parse_arguments(["--config=bert_base_sde", f"--config.model.pretrained={tmp_path}"])
    assert faults(*compiled_on(config, topology)) == []


@pytest.mark.filterwarnings("ignore:.*states no pooling")
@pytest.mark.parametrize("topology", ["v5e:2x2", "h200:2"])
@pytest.mark.parametrize(
    "model_type",
    [
        "gemma3_text",
        "qwen3",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("eurobert", "llama", "mistral", "qwen2")),
    ],
)
def test_small_decoders(model_type, topology, tmp_path):
    keys = FAMILIES[model_type] | SMALL | {"model_type": model_type}
    if model_type == "gemma3_text":
        keys["sliding_window_pattern"] = 2
    (tmp_path / "config.json").write_text(json.dumps(keys))
    config, *_ = train.parse_arguments(["--config=bert_base_sde", f"--config.model.pretrained={tmp_path}"])
    config.train.global_batch_size, config.data.question_length, config.data.answer_length = 16, 32, 64
    train_plan, compiled = compiled_on(config, topology)
    assert faults(train_plan, compiled) == []
    kernel = "tpu_custom_call" if topology.startswith("v5e") else "cudnn$fmha"
    assert kernel in compiled.text
