import chex
import numpy as np
import pytest
from refusals import check_refusal
from tiny_bert import POSITIONS, WIDTH, vocabulary, write_tiny_bert
from tiny_modules import write_files

from endx_jax import pretrained
from endx_jax.models.static import TokensConfig

TABLE = np.arange(8.0, dtype=np.float32).reshape(4, 2)


def test_token_vectors_of_a_known_encoder_are_its_own(tmp_path):
    folder = str(write_tiny_bert(tmp_path / "bert", hidden_dropout_prob=0.3))
    tokens, encoder = pretrained.load_tokens(folder), pretrained.load_encoder(folder)
    assert tokens.config == TokensConfig(len(vocabulary()), WIDTH, POSITIONS, dropout=0.3)
    chex.assert_trees_all_equal(tokens.params(), {"token_embedder": encoder.params()["token_embedder"]})


@pytest.mark.parametrize(
    ("table", "config", "expected"),
    [
        ("roberta.embeddings.word_embeddings.weight", {"hidden_size": 2, "pad_token_id": 1}, {"pad_id": 1}),
        ("embeddings.word_embeddings.weight", {"embedding_size": 2, "hidden_size": 8}, {}),
        ("wte.weight", {"n_embd": 2, "n_positions": 9, "resid_pdrop": 0.0}, {"positions": 9, "dropout": 0.0}),
        ("model.embed_tokens.weight", {"hidden_size": 2, "pad_token_id": None}, {}),
    ],
)
def test_token_vectors_of_other_models_are_found(tmp_path, table, config, expected):
    config = {"model_type": "x", "vocab_size": 4} | config
    tensors = {"other.weight": TABLE.T.copy(), table: TABLE}
    tokens = pretrained.load_tokens(str(write_files(tmp_path, {"config.json": config, "model.safetensors": tensors})))
    assert tokens.config == TokensConfig(4, 2, **expected)
    chex.assert_trees_all_equal(tokens.params(), {"token_embedder": {"embedding": TABLE}})


@pytest.mark.parametrize(
    ("table", "config", "named"),
    [
        ("wte.weight", {"vocab_size": 4}, ["config.json", "hidden_size"]),
        ("w", {"vocab_size": 4, "dim": 2}, ["no token table", "word_embeddings.weight"]),
        ("wte.weight", {"vocab_size": 5, "dim": 2}, ["wte.weight", "(4, 2)", "config.json", "(5, 2)"]),
    ],
)
def test_a_missing_table_is_named(tmp_path, table, config, named):
    write_files(tmp_path, {"config.json": config, "model.safetensors": {table: TABLE}})
    check_refusal(lambda: pretrained.load_tokens(str(tmp_path)).params(), *named)
