"""A BERT folder small enough for tests: real file formats, random weights, a character-level WordPiece tokenizer."""

import dataclasses
import json
import pathlib
import string

import numpy as np

from endx_jax.methods.config import base_config
from endx_jax.methods.pair import PairSettings

WIDTH, LAYERS, HEADS, POSITIONS, MLP_WIDTH = 32, 1, 2, 64, 64
WORDS = "the cat sat on a mat dog where is who what in".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

# The command line that plans a run on the tiny tower, given its folder and the file of pairs.
PLAN = "plan --config=minilm --config.model.pretrained={bert} --config.data.path={pairs} --config.data.cache="
PLAN += " --config.data.question_length=24 --config.data.answer_length=24 --config.train.tower_chunk=0"
PLAN += " --config.train.global_batch_size=16 --config.optimizer.warmup_steps=0 --config.train.steps=5"


def vocabulary() -> list[str]:
    """The tokens, by id: special ones, characters at the start and inside of words, and a few words."""
    characters = string.ascii_lowercase + string.digits + string.punctuation
    return SPECIAL + [*characters] + [f"##{c}" for c in characters] + [w for w in WORDS if len(w) > 1]


def sizes(width: int, layers: int, heads: int, mlp_width: int, positions: int, **more) -> dict:
    """The sizes of an encoder, and more, by their keys in config.json."""
    names = "hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings".split()
    return dict(zip(names, (width, layers, heads, mlp_width, positions), strict=True)) | more


def write_tiny_bert(folder: pathlib.Path, seed: int = 0, **config) -> pathlib.Path:
    """Writes config.json, model.safetensors and the tokenizer's files; `config` overrides keys of config.json."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    about = {"model_type": "bert", "vocab_size": len(vocabulary()), "pad_token_id": 0}
    written = about | sizes(WIDTH, LAYERS, HEADS, MLP_WIDTH, POSITIONS) | config
    (folder / "config.json").write_text(json.dumps(written))
    save_file(random_tensors(written, seed), folder / "model.safetensors")
    write_tokenizer(folder)
    return folder


def random_tensors(config: dict, seed: int) -> dict[str, np.ndarray]:
    """Weights under their Hugging Face names, scaled so that the layers matter."""
    draw = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]

    def normal(*shape):
        return draw.normal(0, 0.2, shape).astype(np.float32)

    def norm(name):
        return {f"{name}.weight": 1 + normal(width), f"{name}.bias": normal(width)}

    def linear(name, rows, columns):
        return {f"{name}.weight": normal(rows, columns), f"{name}.bias": normal(rows)}

    tensors = {
        "embeddings.word_embeddings.weight": normal(config["vocab_size"], width),
        "embeddings.position_embeddings.weight": normal(config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": normal(2, width),
        **norm("embeddings.LayerNorm"),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            tensors |= linear(f"{at}.attention.self.{part}", width, width)
        tensors |= linear(f"{at}.attention.output.dense", width, width)
        tensors |= norm(f"{at}.attention.output.LayerNorm")
        tensors |= linear(f"{at}.intermediate.dense", inner, width)
        tensors |= linear(f"{at}.output.dense", width, inner)
        tensors |= norm(f"{at}.output.LayerNorm")
    return tensors


def write_tokenizer(folder: pathlib.Path) -> None:
    """Writes a lower-casing WordPiece tokenizer over `vocabulary()`."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, processors

    ids = {token: i for i, token in enumerate(vocabulary())}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **{f"{k}_token": v for k, v in names.items()}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def tiny_recipe(pretrained: pathlib.Path, data: pathlib.Path, encoder: str = ""):
    """A config that trains the tiny tower for six steps; with `encoder="none"` its token table alone, much faster."""
    config = base_config()
    config.data.path = str(data)
    config.data.question_length = config.data.answer_length = 24
    config.data.validation_fraction = config.data.test_fraction = 0.2
    config.data.cache = ""
    config.model.pretrained, config.model.encoder = str(pretrained), encoder
    config.model.dropout = 0.1
    config.optimizer.learning_rate = 1e-3
    config.train.global_batch_size = 16
    config.train.epochs = 0.0
    config.train.steps = 6
    config.train.log_every = 1
    config.train.checkpoint_every = 2
    config.train.compilation_cache = ""
    return config


def pair_recipe(pretrained: pathlib.Path, data: pathlib.Path):
    """A config that trains a pair classifier on the tiny tower for four steps."""
    config = tiny_recipe(pretrained, data)
    config.objective = dataclasses.asdict(PairSettings(top=5, questions=8))
    config.model.update(pooling="first", dropout=0.0, attention_dropout=0.0)
    config.train.steps = 4
    return config


def write_usage(folder: pathlib.Path, **contents) -> pathlib.Path:
    """Writes what sentence-transformers keeps about a model's use, such as its prompts; returns the folder."""
    (folder / "config_sentence_transformers.json").write_text(json.dumps(contents))
    return folder
