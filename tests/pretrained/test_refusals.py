"""Pretrained folders and settings of towers that are refused: what is changed, and the words of the line."""

import json
import math

import numpy as np
import pytest
from helpers import write_files
from refusals import check_refusal
from safetensors.numpy import load_file, save_file
from tiny_bert import WIDTH, write_tiny_bert
from tiny_modules import modules

from endx_jax import pretrained
from endx_jax.pretrained.module_list import read_modules
from endx_jax.pretrained.sentence_transformers import read_heads, read_usage
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder, encoder_config, fill_in
from endx_jax.pretrained.weights import SHARD_INDEX, open_tensors
from endx_jax.settings import from_mapping


def transformer(**own) -> dict:
    return {"Transformer/sentence_bert_config.json": own}


def dense(**own) -> dict:
    config = {"in_features": 32, "out_features": 6, "bias": False}
    config |= {"activation_function": "torch.nn.modules.linear.Identity"}
    return {"modules.json": modules("Transformer", "Pooling", "Dense"), "Dense/config.json": config | own}


def pooling(**own) -> dict:
    return {"Pooling/config.json": own}


FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
# Files of sentence-transformers, beside those of a Transformer and a mean.
HEADS = [
    ({"modules.json": modules("LSTM")}, "'LSTM' Transformer, Pooling, Dense"),
    ({"modules.json": modules("WordEmbeddings")}, "'WordEmbeddings' Transformer, Pooling, Dense"),
    ({"modules.json": [{"path": "", "type": "custom_st.Transformer"}]}, "'custom_st.Transformer' own code never"),
    ({"modules.json": modules("Transformer", kwargs=["task"])}, "item 0 kwargs=['task'] unknown"),
    ({"modules.json": modules("Pooling")}, "Pooling Transformer, Pooling, Dense"),
    ({"modules.json": modules("Transformer", "Dense", "Pooling")}, "Transformer, Dense, Pooling supported"),
    ({"modules.json": modules("Transformer", "Pooling", "Normalize", "Dense")}, "Normalize, Dense supported"),
    ({"modules.json": {"type": "x"}}, "modules.json list object"),
    ({"modules.json": [{"path": ""}]}, "modules.json, item 0 'type' 'path'"),
    ({"modules.json": ["Transformer"]}, "modules.json, item 0 object string"),
    ({"modules.json": [modules("Transformer")[0] | {"path": "../other"}]}, "modules.json, item 0 '../other'"),
    (dense(bias=1.5), "Dense/config.json bias=1.5 supported"),
    (dense(activation_function="torch.nn.modules.activation.ReLU"), "Dense/config.json activation_function ReLU"),
    (dense(use_residual=True), "Dense/config.json use_residual=True supported"),
    (dense(module_input_name="token_embeddings"), "Dense/config.json module_input_name='token_embeddings'"),
    (dense(out_features=None), "Dense/config.json 'out_features' None whole number"),
    (transformer(do_lower_case=True), "sentence_bert_config.json do_lower_case"),
    (transformer(transformer_task="fill-mask"), "sentence_bert_config.json transformer_task='fill-mask' supported"),
    (transformer(query_expansion={"length": 32}), "sentence_bert_config.json query_expansion"),
    (transformer(config_kwargs={"hidden_act": "relu"}), "'config_kwargs' hidden_act='relu' unknown"),
    (transformer(model_args={"default_task": "x"}), "'model_args' default_task='x' unknown"),
    (transformer(tokenizer_args={"add_eos_token": True}), "'tokenizer_args' add_eos_token=True"),
    (transformer(modality_config={"text": FORWARD, "message": FORWARD}), "sentence_bert_config.json modality_config"),
    (transformer(tokenizer_name_or_path="x"), "sentence_bert_config.json tokenizer_name_or_path='x' unknown"),
    (transformer(processing_kwargs={"text": {"max_length": 8}}), "sentence_bert_config.json processing_kwargs"),
    (pooling(pooling_mode_mean_tokens=True, pooling_mode_max_tokens=True), "Pooling/config.json pooling one of"),
    (pooling(pooling_mode_mean_tokens=False), "Pooling/config.json pooling one of"),
    (pooling(pooling_mode_mean_sqrt_len_tokens=True), "Pooling/config.json pooling one of"),
    (pooling(pooling_mode="max"), "Pooling/config.json pooling one of"),
    (pooling(pooling_mode=["mean", "cls"]), "Pooling/config.json pooling one of"),
    (pooling(pooling_mode=[]), "Pooling/config.json pooling one of"),
    (pooling(pooling_mode="mean", attention=1), "Pooling/config.json attention=1 unknown"),
    (pooling(pooling_mode="mean", include_prompt=False), "Pooling/config.json include_prompt=False supported True"),
    (
        {
            "modules.json": modules("Transformer", "Pooling", "Normalize"),
            "Normalize/config.json": {"module_input_name": "token_embeddings"},
        },
        "Normalize/config.json module_input_name='token_embeddings'",
    ),
]


@pytest.mark.parametrize(("files", "words"), HEADS)
def test_a_module_that_a_tower_does_not_have_is_named(tmp_path, files, words):
    given = {"modules.json": modules("Transformer", "Pooling"), "Pooling/config.json": {"pooling_mode": "mean"}}
    given |= {"Transformer/tokenizer_config.json": {}}
    check_refusal(lambda: read_heads(write_files(tmp_path, given | files)), *words.split())


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ({"model_type": "CrossEncoder"}, "model_type='CrossEncoder' supported"),
        ({"similarity_fn_name": "manhattan"}, "similarity_fn_name='manhattan' supported"),
        ({"default_prompt_name": "q"}, "default_prompt_name 'q' prompts"),
    ],
)
def test_a_use_that_we_do_not_have_is_named(tmp_path, contents, words):
    name = "config_sentence_transformers.json"
    check_refusal(lambda: read_usage(write_files(tmp_path, {name: contents})), name, *words.split())


ROUTER = "sentence_transformers.base.modules.x."


@pytest.mark.parametrize(
    ("types", "structure", "words"),
    [
        ({"Q": "Transformer"}, {"image": ["Q"]}, "'query' routes 'image'"),
        ({"Q": "Transformer"}, {"query": ["X"]}, "'types' 'X'"),
        ({"../Q": "Transformer"}, {"query": ["../Q"]}, "'../Q' not in"),
        ({"/Q": "Transformer"}, {"query": ["/Q"]}, "'/Q' not in"),
        ({"": "Router"}, {"query": [""]}, "twice"),
        ({".": "Router"}, {"query": ["."]}, "twice"),
        ({"loop": "Router"}, {"query": ["loop"]}, "twice"),
        ({"R": "Router"}, {"query": ["R"] * 20}, "twice"),
    ],
)
def test_a_router_that_leads_nowhere_or_to_itself_is_named(tmp_path, types, structure, words):
    router = {"types": {name: ROUTER + kind for name, kind in types.items()}, "structure": structure, "parameters": {}}
    listed = [{"path": "routes", "type": ROUTER + "Router"}]
    write_files(tmp_path, {"modules.json": listed, "routes/router_config.json": router})
    (tmp_path / "routes" / "loop").symlink_to(".", target_is_directory=True)
    folder = tmp_path / "routes"
    for n in range(20 * ("R" in types)):
        inner = router | ({"structure": {"query": []}} if n == 19 else {})
        folder = write_files(folder / "R", {"router_config.json": inner})
    check_refusal(lambda: read_modules(tmp_path, "question"), "router_config.json", *words.split())


# Keys of the tiny BERT's config; None: without the key.
CONFIGS = [
    ({"model_type": "gpt2"}, "model_type 'gpt2' supported: bert"),
    ({"model_type": "x", "auto_map": {}}, "own code auto_map supported"),
    ({"add_cross_attention": True}, "add_cross_attention=True supported: False"),
    ({"model_type": None}, "model_type ''"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ({"is_decoder": True}, "is_decoder=True"),
    ({"position_embedding_type": "alibi", "auto_map": {}}, "'alibi' own code auto_map"),
    ({"hidden_act": "swish"}, "hidden_act 'swish' gelu"),
    ({"num_attention_heads": 3}, "32 3 heads"),
    ({"hidden_size": None}, "config.json hidden_size"),
    ({"vocab_size": -5}, "config.json vocab_size -5 1 to 2,147,483,647"),
    ({"vocab_size": True}, "config.json vocab_size True whole number"),
    ({"num_attention_heads": 0}, "config.json num_attention_heads 0 from 1"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000 1 to 1,000"),
    ({"num_hidden_layers": 10**400}, "num_hidden_layers 1000 ...0"),
    ({"hidden_size": "384"}, "config.json hidden_size '384' whole number"),
    ({"max_position_embeddings": math.inf}, "config.json max_position_embeddings inf whole"),
    ({"layer_norm_eps": math.nan}, "config.json layer_norm_eps nan 0.0 to 1.0"),
    ({"hidden_act": ["gelu"]}, "hidden_act ['gelu'] gelu"),
    ({"model_type": ["bert"]}, "model_type ['bert']"),
    # Sizes other than the weights', before memory is taken.
    ({"vocab_size": 2**31 - 1}, "embeddings.word_embeddings.weight shape config.json"),
    ({"hidden_size": 2**24, "num_attention_heads": 1}, "embeddings.word_embeddings.weight shape config.json"),
    ({"intermediate_size": 2**24}, "encoder.layer.0.intermediate.dense.weight shape config.json"),
    ({"max_position_embeddings": 2**24}, "embeddings.position_embeddings.weight shape config.json"),
    ({"num_hidden_layers": 1_000}, "no tensor 'encoder.layer.1. they lack"),
    # Contents of the file.
    (b"{", "config.json, column 2 JSON"),
    (b"", "config.json, column 1 JSON"),
    (b'"\xff"', "config.json, byte 2 0xff UTF-8"),
    (b"[]", "config.json object list"),
    (None, "modules.json config.json"),
]


def rewrite_config(folder, changes):
    file = folder / "config.json"
    if isinstance(changes, dict):
        config = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    elif changes is None:
        file.unlink()
    else:
        file.write_bytes(changes)
    return str(folder)


@pytest.mark.parametrize(("changes", "words"), CONFIGS)
def test_a_config_that_we_cannot_build_is_named(tmp_path, changes, words):
    folder = rewrite_config(write_tiny_bert(tmp_path), changes)
    check_refusal(lambda: pretrained.load_encoder(folder).stored_params(), *words.split())


@pytest.mark.parametrize("alone", [False, True])
def test_an_adapter_without_its_base_is_named(tmp_path, alone):
    folder = rewrite_config(write_tiny_bert(tmp_path), None if alone else {})
    write_files(tmp_path, {"adapter_config.json": {}})
    check_refusal(lambda: pretrained.load_encoder(folder), "adapter_config.json", "merge")


def doubled(name):
    return lambda tensors: tensors | {name: np.concatenate([tensors[name]] * 2)}


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


TABLE, ADAPTER = "embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.lora_A"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (doubled(TABLE), f"{TABLE} (304, 32) (152, 32) config.json"),
        (doubled("encoder.layer.0.output.dense.bias"), "encoder.layer.0.output.dense.bias (64,) (32,) config.json"),
        (without("embeddings.LayerNorm.bias"), "no tensor 'embeddings.LayerNorm.bias' (they lack 1 of"),
        (lambda tensors: tensors | {ADAPTER: np.ones((2, 2), np.float32)}, f"'{ADAPTER}' merge"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, change, words):
    folder = write_tiny_bert(tmp_path)
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    check_refusal(lambda: pretrained.load_encoder(str(folder)).params(), *words.split())


MAP = "weight_map"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": {"model_type": "bert"}}, "model.safetensors pytorch_model.bin AutoModel.from"),
        ({"config.json": {"in_features": 3}}, "model.safetensors pytorch_model.bin SentenceTransformer("),
        ({SHARD_INDEX: "{"}, "column 2 JSON"),
        ({SHARD_INDEX: []}, "object list"),
        ({SHARD_INDEX: {}}, "'weight_map'"),
        ({SHARD_INDEX: {MAP: []}}, "'weight_map' object list"),
        ({SHARD_INDEX: {MAP: {"a": 5}}}, "'a' string"),
        ({SHARD_INDEX: {MAP: {"a": "../x"}}}, "'a' '../x' not in the folder"),
        ({SHARD_INDEX: {MAP: {"a": "/x"}}}, "'a' '/x' not in the folder"),
        ({SHARD_INDEX: {MAP: {"a": "model-2.safetensors"}}}, "model-2.safetensors"),
    ],
)
def test_files_of_weights_that_can_not_be_read_are_named(tmp_path, files, words):
    named = [SHARD_INDEX] if files and words.startswith(("column", "object", "'")) else []
    check_refusal(lambda: open_tensors(write_files(tmp_path, files)), *named, *words.split())


@pytest.fixture(scope="module")
def source(tiny_bert):
    return pretrained.load_encoder(str(tiny_bert))


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"layer_weights": (0.5, 0.4, 0.0)}, "model.layer_weights 0.9 one"),
        ({"layer_weights": (1.0,), "encoder": "none"}, "layers encoder=none"),
        ({"layer_weights": (0.5, 0.5)}, "2 weights 3 layers token table, encoder input, layer 1"),
        ({"projectoin": 3}, "model.projectoin 'projection'"),
        ({"encoder": "transformer", "new_encoder": {"width": 8}}, f"model.new_encoder.width 8 {WIDTH} 0"),
        ({"encoder": "transformer", "new_encoder": {"heads": 12}}, f"model.new_encoder.heads 12 {WIDTH}"),
    ],
)
def test_a_setting_of_a_tower_that_does_not_fit_is_named(source, mapping, words):
    def build():
        settings = from_mapping(ModelSettings, mapping, "model")
        if settings.encoder == "transformer":
            encoder_config(settings, source)
        build_dual_encoder(fill_in(settings, source), {"question": source, "answer": source})

    check_refusal(build, *words.split())
