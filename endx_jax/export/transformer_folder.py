"""Writer of a tower's encoder and tokenizer as a transformers folder."""

import json
import pathlib
from collections.abc import Mapping

import numpy as np

from endx_jax import json_files
from endx_jax.export.towers import Towers
from endx_jax.files import write_text
from endx_jax.pretrained.stored import write_file
from endx_jax.pretrained.weights import SINGLE_FILE, to_theirs

# Class in transformers by model_type.
CLASSES = {"bert": "BertModel", "t5": "T5EncoderModel"}

# Keys of config.json that describe the initial checkpoint only.
OF_THE_CHECKPOINT = ("_name_or_path", "torch_dtype", "transformers_version")


def write_transformer_folder(folder: pathlib.Path, towers: Towers, side: str, length: int) -> None:
    """Writes `config.json`, `model.safetensors` (float32) and the tokenizer's files.

    Args:
      folder: output folder.
      towers: towers to export.
      side: side of the encoder.
      length: maximum length in tokens.
    """
    source, params = towers.encoders[side], towers.tower_params(side)
    kept = {name: value for name, value in source.hugging_face.items() if name not in OF_THE_CHECKPOINT}
    described = {**kept, "architectures": [CLASSES[source.hugging_face["model_type"]]], "dtype": "float32"}
    write_json(folder / "config.json", described)
    tensors = to_theirs(params, source.architecture.rules, source.config.layers)
    write_tensors(folder / SINGLE_FILE, tensors | _unused(source.hugging_face))
    write_tokenizer(folder, towers, side, length)


def write_tokenizer(folder: pathlib.Path, towers: Towers, side: str, length: int) -> None:
    """Writes the tokenizer's files with the maximum length."""
    towers.processors[side].tokenizer.save(folder)
    file = folder / "tokenizer_config.json"
    write_json(file, json_files.read(file) | {"model_max_length": length})


def write_json(file: pathlib.Path, contents: object) -> None:
    """Writes an indented JSON file."""
    write_text(file, json.dumps(contents, indent=2, ensure_ascii=False) + "\n")


def write_tensors(file: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> str:
    """Writes float32 arrays as safetensors, and returns the sha256 of the file."""
    return write_file(file, {name: tensor.shape for name, tensor in tensors.items()}, tensors.values())


def _unused(config: Mapping) -> dict[str, np.ndarray]:
    """Returns zeros for tensors that BertModel has and our towers lack, as it warns about missing ones."""
    if config["model_type"] != "bert":
        return {}
    width = config["hidden_size"]
    zeros = {"pooler.dense.weight": (width, width), "pooler.dense.bias": (width,)}
    return {name: np.zeros(shape, np.float32) for name, shape in zeros.items()}
