"""Reading a pretrained folder: what it must hold, and what is said when it does not."""

import json

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_bert import LAYERS, WIDTH, write_tiny_bert

from endx_jax import pretrained
from endx_jax.encoders.bert import BERT
from endx_jax.pretrained.checkpoint import check_config
from endx_jax.pretrained.sentence_transformers import Head
from endx_jax.pretrained.weights import paths, to_theirs


@pytest.fixture
def folder(tmp_path):
    """A tiny BERT to spoil."""
    return write_tiny_bert(tmp_path / "bert")


def rewrite_config(folder, **changes) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def rewrite_tensors(folder, change) -> None:
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def spelt_as_of_old(tensors: dict) -> dict:
    """The names in the first BERTs' files on the hub."""
    return {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }


def test_a_folder_is_described_without_reading_its_weights(folder):
    (folder / "model.safetensors").unlink()
    source = pretrained.load_encoder(str(folder))
    assert source.folder == folder
    assert source.architecture is BERT
    assert (source.config.width, source.config.layers) == (WIDTH, LAYERS)
    assert source.head == Head(folder, pooling="", normalize=False, max_length=None)
    assert source.pooling == "mean"


def test_weights_go_there_and_back_bit_for_bit(folder):
    source = pretrained.load_encoder(str(folder))
    params = source.params()
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    written = to_theirs(params, BERT.rules(source.config, paths(params)))
    chex.assert_trees_all_equal(written, load_file(folder / "model.safetensors"))
    config = pretrained.load_encoder(str(folder)).config
    with pytest.raises(KeyError, match="encoder/layers_0/adapter/kernel"):
        list(BERT.rules(config, ["encoder/norm/scale", "encoder/layers_0/adapter/kernel"]))


def test_older_names_and_tensors_of_no_use_change_nothing(folder):
    expected = pretrained.load_encoder(str(folder)).params()
    rewrite_tensors(folder, spelt_as_of_old)
    chex.assert_trees_all_equal(pretrained.load_encoder(str(folder)).params(), expected)
    extra = {"pooler.dense.weight": np.ones((2, 2), np.float32), "embeddings.position_ids": np.arange(64)[None]}
    rewrite_tensors(folder, lambda tensors: tensors | extra)
    chex.assert_trees_all_equal(pretrained.load_encoder(str(folder)).params(), expected)


def test_tensors_that_are_not_used_are_named(folder):
    rewrite_tensors(folder, lambda tensors: tensors | {"linear.weight": np.ones((2, 2), np.float32)})
    with pytest.warns(UserWarning, match="1 tensors of the weights are not used: linear.weight"):
        pretrained.load_encoder(str(folder)).params()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alibi_slope": 0.5, "extra": None}, "config.json: alibi_slope=0.5: unknown keys are ignored, as tran"),
        ({"auto_map": {"AutoModel": "own.Model"}}, r"own code \(auto_map\) is never run: embeddings are those of tran"),
        ({"architectures": ["HF_ColBERT"]}, r"config.json: architectures=\['HF_ColBERT'\]: unknown keys are ignored"),
    ],
)
def test_an_unknown_key_of_a_config_is_named(folder, changes, message):
    rewrite_config(folder, **changes)
    with pytest.warns(UserWarning, match=message):
        pretrained.load_encoder(str(folder))


# Keys of published files that embeddings do not depend on, by family.
PUBLISHED = {
    "bert": "directionality pooler_fc_size pooler_type gradient_checkpointing _name_or_path transformers_version "
    "classifier_dropout torch_dtype use_cache sbert_ce_default_activation_function id2label sentence_transformers",
    "nomic_bert": "auto_map attn_pdrop dense_seq_output embd_pdrop fused_bias_fc fused_dropout_add_ln "
    "max_trained_positions pad_vocab_size_multiple resid_pdrop rotary_emb_base scale_attn_weights "
    "summary_first_dropout use_flash_attn use_xentropy layer_norm_epsilon",
    "new": "attn_implementation layer_norm_type pack_qkv unpad_inputs use_memory_efficient_attention rope_theta "
    "classifier_dropout matryoshka_dimensions auto_map",
    "modernbert": "layer_norm_eps norm_eps cls_token_id decoder_bias deterministic_flash_attn embedding_dropout "
    "global_rope_theta local_attention reference_compile repad_logits_with_grad sparse_pred_ignore_index "
    "position_embedding_type",
    "t5": "d_kv decoder_start_token_id dense_act_fn is_gated_act n_positions num_decoder_layers output_past "
    "task_specific_params initializer_factor relative_attention_num_buckets tie_word_embeddings",
    "qwen2": "bos_token_id max_window_layers sliding_window rope_theta tie_word_embeddings use_cache",
    "gemma3_text": "_sliding_window_pattern cache_implementation head_dim query_pre_attn_scalar rope_local_base_freq "
    "rope_theta sliding_window use_cache",
}
VALUES = {"layer_norm_eps": 1e-5, "norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "embedding_dropout": 0.1}
VALUES |= {"scale_attn_weights": True, "pack_qkv": True, "layer_norm_type": "layer_norm", "resid_pdrop": 0.1}
VALUES |= {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "hidden_size": 32, "num_attention_heads": 4}


@pytest.mark.parametrize("family", PUBLISHED)
def test_keys_of_published_configs_are_known(family, tmp_path):
    names = "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size " + PUBLISHED[family]
    positions = {} if family == "t5" else {"max_position_embeddings": 8}
    config = {name: VALUES.get(name, 8) for name in names.split()}
    check_config({"model_type": family} | config | positions, tmp_path)
