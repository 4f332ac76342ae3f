"""Tiny folders of late interaction, as sentence-transformers' MultiVectorEncoder and PyLate write them."""

import json
import pathlib

import numpy as np
from tiny_bert import vocabulary, write_tiny_bert
from tiny_modules import write_files

NATIVE = {
    "": "sentence_transformers.base.modules.transformer.Transformer",
    "1_Dense": "sentence_transformers.base.modules.dense.Dense",
    "2_MultiVectorMask": "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    "3_Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
POOLING = "sentence_transformers.multi_vector_encoder.modules.token_pooling.HierarchicalTokenPooling"
# What a folder states of questions that are expanded to a number of tokens.
FIXED = {"strategy": "fixed", "attend": False, "token": None, "length": 12}
OVER_TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
DENSE = {"in_features": 16, "out_features": 4, "bias": False}
DENSE |= {"activation_function": "torch.nn.modules.linear.Identity"}


def write_json(file: pathlib.Path, contents: object) -> None:
    write_files(file.parent, {file.name: contents})


def _write(folder, modules, usage, dense, own, **config):
    write_tiny_bert(folder, **{"hidden_size": 16, "intermediate_size": 16} | config)
    listed = [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (path, kind) in enumerate(modules.items())]
    weight = np.random.default_rng(5).normal(size=(4, 16)).astype(np.float32)
    files = {"modules.json": listed, "config_sentence_transformers.json": usage, "sentence_bert_config.json": own}
    dense = {"1_Dense/config.json": DENSE | dense, "1_Dense/model.safetensors": {"linear.weight": weight}}
    return write_files(folder, files | dense)


def write_multi_vector(folder, *, modules=NATIVE, dense=None, mask=None, transformer=None, usage=None):
    """Writes a folder of sentence-transformers 6.2; the arguments override its files."""
    about = {"model_type": "MultiVectorEncoder", "prompts": {}, "similarity_fn_name": "maxsim"}
    own = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"} | (transformer or {})
    _write(folder, modules, about | (usage or {}), OVER_TOKENS | (dense or {}), own)
    after = {"2_MultiVectorMask": {"skiplist_words": []} | (mask or {}), "3_Normalize": OVER_TOKENS}
    return write_files(folder, {f"{name}/config.json": contents for name, contents in after.items()})


def write_pylate(folder, **usage):
    """Writes a folder of PyLate 1.6, whose prefixes are tokens that a lower-casing normalizer would change.

    `usage` overrides keys of the file that states the model's use; None removes one.
    """
    modules = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    about = {"model_type": "ColBERT", "prompts": {"query": "", "document": ""}, "similarity_fn_name": "MaxSim"}
    about |= {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12, "document_length": 20}
    about |= {"attend_to_expansion_tokens": False, "skiplist_words": [".", "?"], "do_query_expansion": True}
    about = {name: value for name, value in (about | usage).items() if value is not None}
    words = len(vocabulary())
    own = {"max_seq_length": 64, "do_lower_case": False}
    _write(folder, modules, about, {"use_residual": False}, own, vocab_size=words + 2)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False) | {"normalized": True}
    prefixes = [{"id": words + n, "content": prefix} | flags for n, prefix in enumerate(("[Q] ", "[D] "))]
    tokenizer["added_tokens"] += prefixes
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
