"""Conversion between Hugging Face tensors and our parameter trees by the rules of each architecture."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import flax.traverse_util
import numpy as np

from endx_jax import json_files
from endx_jax.encoders.architecture import TensorRule
from endx_jax.errors import EndxError
from endx_jax.pretrained.stored import StoredArray, open_file

SINGLE_FILE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
# How to convert PyTorch's files of an encoder, and of other modules. They are never read, since pickles run code.
OF_ENCODER = "transformers: AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER)"
OF_MODULE = "sentence-transformers: SentenceTransformer(FOLDER).save_pretrained(FOLDER), where FOLDER has modules.json"


def open_tensors(folder: pathlib.Path) -> dict[str, StoredArray]:
    """Returns the tensors in a folder's safetensors files by name; they are read as float32 on demand.

    As in transformers, an index is only read if there is no `model.safetensors`. Each tensor of a sharded checkpoint is
    read from the file that the index names for it; others are ignored.
    """
    index = folder / SHARD_INDEX
    if (folder / SINGLE_FILE).is_file() or not index.is_file():
        return open_file(_existing(folder / SINGLE_FILE))
    named = json_files.value(json_files.read_json_file(index), "weight_map", str(index))
    places = {
        tensor: json_files.inside(folder, name, f"{index}: the file of {json_files.shown(tensor)}")
        for tensor, name in json_files.as_object(named, f"{index}: 'weight_map'").items()
    }
    files = {file: open_file(_existing(file)) for file in sorted({*places.values()})}
    if lacking := [tensor for tensor, file in places.items() if tensor not in files[file]]:
        raise EndxError(
            f"{places[lacking[0]]} has no tensor {lacking[0]!r}, which {SHARD_INDEX} assigns to it: take the index and "
            "all weight files from one published folder"
        )
    return {tensor: files[file][tensor] for tensor, file in places.items()}


def modernise(
    tensors: Mapping[str, Any], prefixes: Iterable[str], spellings: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Renames tensors to their current names, without prefixes (`bert.`) and older endings (`LayerNorm.gamma`).

    Only the first of the prefixes that a name begins with is removed. Older spellings are endings of names. If tensors
    have both names, the one with the newer name is used.
    """
    prefix, spellings = next((p for p in prefixes if any(name.startswith(p) for name in tensors)), ""), spellings or {}
    tensors, renamed = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}, {}
    for name, tensor in tensors.items():
        old = next((spelling for spelling in spellings if name.endswith(spelling)), "")
        newer = name.removesuffix(old) + spellings.get(old, "")
        if not old or newer not in tensors:
            renamed[newer] = tensor
    return renamed


def to_ours(
    tensors: Mapping[str, StoredArray],
    rules: Iterable[TensorRule],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    where: object,
) -> dict:
    """Builds a parameter tree from a checkpoint's tensors, without reading them; omits those without a rule.

    Args:
      tensors: tensors by name, without prefix.
      rules: rules of the parameters.
      shapes: shapes of the parameters by path.
      where: the folder, for messages.
    """
    params, rules = {}, [*rules]
    if missing := [rule.theirs for rule in rules if rule.theirs not in tensors]:
        raise EndxError(
            f"{where}: the weights have no tensor {missing[0]!r} (they lack {len(missing)} of {len(rules)} that "
            f"config.json requires, and have {json_files.format_names([*tensors][:3])}, ...): take config.json and all "
            "weight files from one published folder"
        )
    for rule in rules:
        tensor = tensors[rule.theirs]
        expected = _their_shape(rule, shapes)
        if tensor.shape != expected:
            raise EndxError(f"{where}: {rule.theirs} has shape {tensor.shape}; config.json requires {expected}")
        for path, part in zip(rule.ours, tensor.split(len(rule.ours)), strict=True):
            params[path] = part.T if rule.transpose else part
    return flax.traverse_util.unflatten_dict(params, sep="/")


def _their_shape(rule: TensorRule, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    parts = [shapes[path][::-1] if rule.transpose else shapes[path] for path in rule.ours]
    return (sum(shape[0] for shape in parts), *parts[0][1:])


def to_theirs(params: Mapping, rules: Iterable[TensorRule]) -> dict[str, np.ndarray]:
    """Converts a parameter tree to a checkpoint's tensors; the inverse of `to_ours`, without a prefix."""
    ours, tensors = paths(params), {}
    for rule in rules:
        parts = [np.asarray(ours[path]).T if rule.transpose else np.asarray(ours[path]) for path in rule.ours]
        tensors[rule.theirs] = np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))
    return tensors


def paths(params: Mapping) -> dict[str, Any]:
    """Returns the leaves of a parameter tree by path."""
    return flax.traverse_util.flatten_dict(params, sep="/")


def _existing(file: pathlib.Path) -> pathlib.Path:
    """Returns the file; raises EndxError if it does not exist."""
    if not file.is_file():
        convert = OF_ENCODER if "model_type" in json_files.read_optional(file.parent / "config.json") else OF_MODULE
        hint = f"if it is published as pytorch_model.bin, convert it with {convert}"
        raise EndxError(f"{file.parent} has no {file.name}, the only format that is read; {hint}")
    return file
