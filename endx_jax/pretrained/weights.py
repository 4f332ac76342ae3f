"""Conversion between Hugging Face tensors and our parameter trees by a table of rules for each architecture."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.pretrained.stored import Stored, open_file

SINGLE_FILE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class Rule:
    """Mapping between a parameter of ours and a checkpoint's tensor; `{layer}` is replaced by the layer's number.

    Attributes:
      ours: path in the tower's parameters, joined by `/`.
      theirs: name in the checkpoint.
      transpose: transposes the matrix: [out, in] in PyTorch's linear layers, [in, out] in ours.
    """

    ours: str
    theirs: str
    transpose: bool = False


def open_tensors(folder: pathlib.Path) -> dict[str, Stored]:
    """Returns the tensors in a folder's safetensors files by name; they are read as float32 on demand.

    Raises:
      EndxError: there are none, or a file is damaged.
    """
    return {name: tensor for file in _weight_files(folder) for name, tensor in open_file(file).items()}


def read_tensors(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads the tensors of `open_tensors`."""
    return {name: np.asarray(tensor) for name, tensor in open_tensors(folder).items()}


def modernise(tensors: Mapping[str, Any], spellings: Mapping[str, str]) -> dict[str, Any]:
    """Renames tensors whose names end in an older spelling, such as `LayerNorm.gamma`, to the newer one."""
    renamed = {}
    for name, tensor in tensors.items():
        old = next((spelling for spelling in spellings if name.endswith(spelling)), "")
        renamed[name.removesuffix(old) + spellings.get(old, "")] = tensor
    return renamed


def to_ours(
    tensors: Mapping[str, Any], rules: Sequence[Rule], layers: int, *, prefixes: Iterable[str], where: object
) -> dict:
    """Builds a parameter tree from a checkpoint's tensors; omits tensors without a rule (poolers, heads).

    Does not read `Stored` tensors.

    Args:
      tensors: tensors by name.
      rules: rules of the architecture.
      layers: number of layers, for rules with `{layer}`.
      prefixes: possible prefixes of all names, such as `bert.`.
      where: the folder, for messages.

    Raises:
      EndxError: a tensor is missing.
    """
    prefix = next((p for p in prefixes if any(name.startswith(p) for name in tensors)), "")
    tree: dict = {}
    for rule in expand(rules, layers):
        if prefix + rule.theirs not in tensors:
            raise EndxError(
                f"{where}: the weights have no tensor {rule.theirs!r}; check that config.json belongs to this model"
            )
        tensor = tensors[prefix + rule.theirs]
        *path, leaf = rule.ours.split("/")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = _transposed(tensor) if rule.transpose else tensor
    return tree


def _transposed(tensor: Any) -> Any:
    return tensor.T if isinstance(tensor, Stored) else np.ascontiguousarray(tensor.T)


def to_theirs(params: Mapping, rules: Sequence[Rule], layers: int) -> dict[str, np.ndarray]:
    """Converts a parameter tree to a checkpoint's tensors; the inverse of `to_ours`, without a prefix."""
    tensors = {}
    for rule in expand(rules, layers):
        leaf = params
        for part in rule.ours.split("/"):
            leaf = leaf[part]
        tensors[rule.theirs] = np.ascontiguousarray(np.asarray(leaf).T) if rule.transpose else np.asarray(leaf)
    return tensors


def expand(rules: Sequence[Rule], layers: int) -> Iterator[Rule]:
    """Yields the rules; rules with `{layer}` once for each layer."""
    for rule in rules:
        for n in range(layers) if "{layer}" in rule.ours else (None,):
            yield dataclasses.replace(rule, ours=rule.ours.format(layer=n), theirs=rule.theirs.format(layer=n))


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    index = folder / SHARD_INDEX
    if index.is_file():
        named = json_files.value(json_files.read(index), "weight_map", str(index))
        if not isinstance(named, dict):
            raise EndxError(f"{index}: 'weight_map' must be an object, not {json_files.kind(named)}")
        places = {
            json_files.inside(folder, name, f"{index}: the file of {json_files.shown(tensor)}")
            for tensor, name in named.items()
        }
        files = sorted(places)
    else:
        files = [folder / SINGLE_FILE]
    for file in files:
        if not file.is_file():
            raise EndxError(f"{folder} has no {file.name}; only safetensors weights are supported: convert the model")
    return files
