"""Writer of a tower's encoder and tokenizer as a transformers folder."""

import json
import pathlib
from collections.abc import Mapping

import numpy as np

from endx_jax import json_files
from endx_jax.export.towers import Towers
from endx_jax.files import write_text
from endx_jax.pretrained.stored import write_file
from endx_jax.pretrained.weights import SINGLE_FILE, paths, to_theirs

# Keys of config.json that describe the initial checkpoint only.
OF_THE_CHECKPOINT = ("_name_or_path", "torch_dtype", "transformers_version")


def write_transformer_folder(folder: pathlib.Path, towers: Towers, side: str, length: int) -> None:
    """Writes a side's `config.json`, `model.safetensors` (float32) and tokenizer, for at most `length` tokens."""
    source, params = towers.encoders[side], towers.tower_params(side)
    architecture = source.architecture
    kept = {name: value for name, value in source.hugging_face.items() if name not in OF_THE_CHECKPOINT}
    described = {**kept, "architectures": [architecture.transformers_class], "dtype": "float32"}
    write_json(folder / "config.json", described)
    groups = {group: params[group] for group in ("token_embedder", "encoder")}
    tensors = to_theirs(groups, architecture.rules(source.config, paths(groups)))
    write_tensors(folder / SINGLE_FILE, tensors | _unused(architecture.pooler, source.config.width))
    write_tokenizer(folder, towers, side, length)


def write_tokenizer(folder: pathlib.Path, towers: Towers, side: str, length: int) -> None:
    """Writes the tokenizer's files with the maximum length."""
    towers.processors[side].tokenizer.save(folder)
    file = folder / "tokenizer_config.json"
    write_json(file, json_files.read_json_file(file) | {"model_max_length": length})


def write_json(file: pathlib.Path, contents: object) -> None:
    """Writes an indented JSON file."""
    write_text(file, json.dumps(contents, indent=2, ensure_ascii=False) + "\n")


def write_tensors(file: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> str:
    """Writes float32 arrays as safetensors, and returns the sha256 of the file."""
    return write_file(file, {name: tensor.shape for name, tensor in tensors.items()}, tensors.values())


def _unused(pooler: str, width: int) -> dict[str, np.ndarray]:
    """Returns zeros for the pooler that a class of transformers has, as it warns about missing tensors."""
    shapes = {f"{pooler}.weight": (width, width), f"{pooler}.bias": (width,)} if pooler else {}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
