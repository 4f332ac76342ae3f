"""Small configs of every encoder family, in the keys of transformers."""

from tiny_bert import sizes

SMALL = sizes(24, layers=2, heads=2, mlp_width=40, positions=16)
OTHER = {"hidden_size": 40, "num_attention_heads": 5, "layer_norm_eps": 1e-2}
DISTILBERT = {"dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 40, "max_position_embeddings": 16}
T5 = {"d_model": 24, "d_kv": 12, "d_ff": 24, "num_layers": 2, "num_heads": 2, "relative_attention_max_distance": 20}
GATED = {"feed_forward_proj": "gated-gelu"}
# Seven layers, so that the pattern of their kinds repeats; windows narrower than the longest text.
MODERN = {"num_hidden_layers": 7, "local_attention": 6}
BIASED = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "layer_types": ["sliding_attention"] * 2}
SCALED = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
# Wavelengths of 6 to 190 positions: the scaling leaves some, changes some and changes one in part.
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LLAMA = SMALL | {"max_position_embeddings": 128, "num_attention_heads": 8, "num_key_value_heads": 1}
LLAMA |= {"head_dim": 6, "rope_parameters": LLAMA3}
MISTRAL = SMALL | {"num_key_value_heads": 1, "sliding_window": 4}
QWEN = SMALL | {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 6}
WINDOWS = {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
GEMMA = SMALL | {"num_key_value_heads": 1, "head_dim": 8, "query_pre_attn_scalar": 5, "sliding_window": 6}
GEMMA |= {"num_hidden_layers": 5, "sliding_window_pattern": 2}

# By name: model_type and the keys of its config.
FAMILIES = {
    "bert": ("bert", SMALL),
    "roberta": ("roberta", SMALL | {"pad_token_id": 1, "type_vocab_size": 1}),
    "electra": ("electra", SMALL | {"embedding_size": 12, "pad_token_id": 3}),
    "distilbert": ("distilbert", DISTILBERT),
    "mpnet": ("mpnet", SMALL | {"pad_token_id": 1}),
    "albert": ("albert", SMALL | {"embedding_size": 12, "num_hidden_layers": 3}),
    "modernbert": ("modernbert", SMALL | MODERN),
    "nomic_bert": ("nomic_bert", SMALL),
    "gte": ("gte", SMALL | {"type_vocab_size": 0, "rope_parameters": SCALED}),
    "t5": ("t5", T5),
    "t5 1.1": ("t5", T5 | GATED),
    "umt5": ("umt5", T5 | GATED),
    "llama": ("llama", LLAMA),
    "mistral": ("mistral", MISTRAL),
    "qwen2": ("qwen2", QWEN | {"num_key_value_heads": 4}),
    "qwen3": ("qwen3", QWEN | WINDOWS),
    "gemma3": ("gemma3_text", GEMMA),
    "embeddinggemma": ("gemma3_text", GEMMA | {"use_bidirectional_attention": True, "num_hidden_layers": 2}),
}
# Families that have between them every part that is differentiated.
LEARNED = ("bert", "mpnet", "albert", "modernbert", "t5", "umt5", "gemma3")
# Variants whose parts are all in those above.
ALIKE = {
    "bert, gelu_new, one type": ("bert", SMALL | OTHER | {"hidden_act": "gelu_new", "type_vocab_size": 1}),
    "camembert": ("camembert", SMALL | {"pad_token_id": 3, "type_vocab_size": 1}),
    "xlm-roberta": ("xlm-roberta", SMALL | {"pad_token_id": 1}),
    "mt5": ("mt5", T5 | GATED),
    "eurobert": ("eurobert", SMALL | {"num_key_value_heads": 1, "head_dim": 8}),
    "modernbert, biases": ("modernbert", SMALL | BIASED),
    "gte, types": ("gte", SMALL),
    "llama, bidirectional": ("llama", LLAMA | {"is_causal": False, "attention_bias": True, "mlp_bias": True}),
    "mistral, bidirectional": ("mistral", MISTRAL | {"is_causal": False}),
    "mistral, no window": ("mistral", MISTRAL | {"sliding_window": None}),
    "qwen2, bidirectional": ("qwen2", QWEN | {"is_causal": False, "num_key_value_heads": 2}),
    "qwen3, biases": ("qwen3", QWEN | {"attention_bias": True, "num_key_value_heads": 1}),
}
