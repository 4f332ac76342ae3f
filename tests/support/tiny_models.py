"""Tiny models, as `endx_jax.load` would give them, without training."""

import dataclasses
import json
import pathlib

import jax
import numpy as np
from helpers import initial_params, mesh_of, random_params, write_files
from safetensors.numpy import save_file
from tiny_bert import sizes, vocabulary, write_tokenizer

from endx_jax import pretrained
from endx_jax.batch import Tokens
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.encoders.architecture import Architecture
from endx_jax.encoders.llama import QWEN3
from endx_jax.encoders.t5 import T5
from endx_jax.inference import EmbeddingModel, ModelSource
from endx_jax.inference.encode import TextEncoder
from endx_jax.models.tower import TokenEmbedder, Tower
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder, fill_in
from endx_jax.pretrained.weights import paths, to_theirs
from endx_jax.settings import from_mapping

TEXTS = ["the cat sat on the mat", "", "a dog 🙂 [SEP] where?", "who is in the mat " * 20, "x"]


def write_encoder(folder: pathlib.Path, family: Architecture, config: dict, seed: int = 0) -> pathlib.Path:
    """Writes an encoder with random weights, and the tiny BERT's tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"vocab_size": len(vocabulary())} | config
    (folder / "config.json").write_text(json.dumps(config))
    shape = family.config.from_hugging_face(config)
    tower = Tower(TokenEmbedder(shape.vocab_size, shape.width), TransformerEncoder(shape))
    params = random_params(tower, Tokens(np.zeros((1, 2), np.int32), np.ones((1, 2), bool)), seed=seed)
    save_file(to_theirs(params, family.rules(shape, paths(params))), folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def write_tiny_t5(folder: pathlib.Path, **config) -> pathlib.Path:
    """Writes a T5 encoder with the tiny BERT's tokenizer."""
    about = {"model_type": "t5", "pad_token_id": 0, "tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}
    about |= {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_kv": 4, "d_ff": 24}
    return write_encoder(folder, T5, about | config)


def write_tiny_qwen3(folder: pathlib.Path, seed: int = 0, **config) -> pathlib.Path:
    """Writes a causal Qwen3 with the tiny BERT's tokenizer, whose texts end with [SEP], the token that is pooled."""
    about = {"model_type": "qwen3"} | sizes(32, 2, 4, 48, positions=64, num_key_value_heads=2, head_dim=8)
    write_encoder(folder, QWEN3, about | config, seed)
    modules = {"": "Transformer", "1_Pooling": "Pooling"}
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules.items()]
    pooling = {"embedding_dimension": (about | config)["hidden_size"], "pooling_mode": "lasttoken"}
    names = json.loads((folder / "tokenizer_config.json").read_text()) | {"eos_token": "[SEP]"}
    files = {"modules.json": listed, "1_Pooling/config.json": pooling, "tokenizer_config.json": names}
    return write_files(folder, files)


def make_model(folder: pathlib.Path, *, question_length=24, answer_length=24, **settings) -> EmbeddingModel:
    """A model around a pretrained folder; `settings` are those of `config.model`.

    What each tower has for itself is moved, so that towers that began alike are not.
    """
    chosen = from_mapping(ModelSettings, {"pretrained": str(folder), **settings}, "model")
    load = pretrained.load_tokens if chosen.encoder else pretrained.load_encoder
    source = load(str(folder))
    sources = {"question": source, "answer": source}
    tokenizer = Tokenizer(folder)
    processors = {
        "question": TextProcessor(tokenizer, question_length, chosen.question_prompt),
        "answer": TextProcessor(tokenizer, answer_length, chosen.answer_prompt),
    }
    dual_encoder = build_dual_encoder(fill_in(chosen, source), sources, processors=processors)
    params = initial_params(dual_encoder, chosen, sources, jax.random.key(0))
    draw = np.random.default_rng(0)
    params = jax.tree.map(lambda x: np.asarray(x + draw.normal(0, 0.02, x.shape), np.float32), params)
    encoder = TextEncoder(dual_encoder, processors, mesh_of(1))
    return EmbeddingModel("a/b/tiny", encoder, params, cosine=chosen.normalize, source=ModelSource(sources))


def embeddings(model: EmbeddingModel) -> dict[str, np.ndarray]:
    """Of `TEXTS` by side."""
    return {"question": model.encode_query(TEXTS), "answer": model.encode_document(TEXTS)}


def recording(towers, record):
    """The towers of a model, which call `record(side, tokens)` when a program of theirs is traced."""

    class Recording(type(towers)):
        def encode(self, params, side, tokens):
            record(side, tokens)
            return super().encode(params, side, tokens)

    return Recording(towers.question, towers.answer, towers.sharing)


def in_float32(model: EmbeddingModel) -> EmbeddingModel:
    settings = ModelSettings(projection=model.width)
    source = model.source.encoders["question"]
    dual_encoder = build_dual_encoder(fill_in(settings, source), model.source.encoders)
    encoder = TextEncoder(dual_encoder, model.encoder.processors, model.encoder.mesh)
    return dataclasses.replace(model, encoder=encoder)
