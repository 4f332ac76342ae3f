"""Encoder families: config, names of weights, and what they choose from `models.transformer`."""

from collections.abc import Mapping

from endx_jax.encoders import bert, gemma, gte, llama, modernbert, nomic_bert, t5
from endx_jax.encoders.architecture import Architecture, EncoderConfig, Names
from endx_jax.models.static import StaticConfig

# Static token vectors, in the format that `pretrained.static` writes.
STATIC = Architecture(StaticConfig, "", lambda config: Names({"token_embedder": "embedding"}))

# Supported encoder families by the `model_type` of their `config.json`.
ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": bert.BERT,
    "roberta": bert.ROBERTA,
    "xlm-roberta": bert.XLM_ROBERTA,
    "camembert": bert.CAMEMBERT,
    "electra": bert.ELECTRA,
    "distilbert": bert.DISTILBERT,
    "mpnet": bert.MPNET,
    "albert": bert.ALBERT,
    "modernbert": modernbert.MODERNBERT,
    "nomic_bert": nomic_bert.NOMIC_BERT,
    "gte": gte.GTE,
    "new": gte.GTE,  # on the hub, with code of its own
    "t5": t5.T5,
    "mt5": t5.MT5,
    "umt5": t5.UMT5,
    "llama": llama.LLAMA,
    "mistral": llama.MISTRAL,
    "eurobert": llama.EUROBERT,
    "qwen2": llama.QWEN2,
    "qwen3": llama.QWEN3,
    "gemma3_text": gemma.GEMMA3,
    "static": STATIC,
}

__all__ = ["ARCHITECTURES", "Architecture", "EncoderConfig"]
