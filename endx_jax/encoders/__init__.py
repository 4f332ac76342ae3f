"""Encoder families: config, names of weights, and what they choose from `models.transformer`."""

from collections.abc import Mapping

from endx_jax.encoders import bert, gemma, gte, llama, modernbert, nomic_bert, qwen, static, t5
from endx_jax.encoders.architecture import Architecture, EncoderConfig

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
    "qwen2": qwen.QWEN2,
    "qwen3": qwen.QWEN3,
    "gemma3_text": gemma.GEMMA3,
    "static": static.STATIC,
}

__all__ = ["ARCHITECTURES", "Architecture", "EncoderConfig"]
