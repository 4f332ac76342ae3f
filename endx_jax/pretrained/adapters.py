"""Adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`."""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence

import flax.traverse_util
import numpy as np

from endx_jax import json_files
from endx_jax.encoders.architecture import TensorRule
from endx_jax.errors import EndxError
from endx_jax.files import write_text
from endx_jax.models.config_keys import check_keys
from endx_jax.models.lora import KERNEL, A, B, LoraSettings, is_adapter, is_linear
from endx_jax.pretrained.checkpoint import PretrainedEncoder, shapes_of
from endx_jax.pretrained.sentence_transformers import ADAPTER
from endx_jax.pretrained.stored import metadata_of, open_file, write_file
from endx_jax.pretrained.weights import modernise, paths, to_ours

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
BASE_SHA256 = "base_sha256"  # in the metadata of the file of weights, where PEFT ignores it

# A side that uses the encoder of each group of parameters.
SIDE_OF_GROUP = {"shared": "question", "question": "question", "answer": "answer"}

# Settings by their names in PEFT's LoraConfig.
SETTINGS = {"r": "rank", "lora_alpha": "alpha", "use_rslora": "rank_stabilized"}
# Supported values of PEFT's LoraConfig by key. Other initialisations, such as PiSSA, change the base's weights.
ONLY: Mapping[str, Sequence] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
# Keys that are read, or have no effect on a trained adapter.
KNOWN = (
    " ".join(SETTINGS) + r" (task|peft)_\w+ auto_mapping base_model_name_or_path revision inference_mode lora_dropout"
    r" \w+_modules layers_\w+ (rank|alpha)_pattern megatron_core eva_config runtime_config qalora_group_size"
)


def read_adapters(
    folder: pathlib.Path,
    dual_encoder: dict,
    sources: Mapping[str, PretrainedEncoder],
    settings: LoraSettings,
    base_sha256: str,
) -> dict:
    """Replaces the adapters of a dual encoder, of one tower or of both, by those of a folder.

    Args:
      folder: folder in PEFT's format.
      dual_encoder: parameters with adapters.
      sources: pretrained encoders by side.
      settings: settings of the adapters.
      base_sha256: hash of the base.
    """
    leaves = paths(dual_encoder)
    for group, side in SIDE_OF_GROUP.items():
        if ours := {path.partition("/")[2] for path in leaves if is_adapter(path) and path.startswith(f"{group}/")}:
            theirs = read_adapter(folder, sources[side], settings, base_sha256)
            if differing := sorted(ours ^ theirs.keys()):
                lacks = (
                    "has no adapter" if differing[0] in ours else "has an adapter, which model.lora.targets excludes,"
                )
                raise EndxError(
                    f"model.lora.adapter={folder} {lacks} of {differing[0].rpartition('/')[0]}: set model.lora.targets "
                    "to the layers of the adapter"
                )
            leaves |= {f"{group}/{path}": values for path, values in theirs.items()}
    return flax.traverse_util.unflatten_dict(leaves, sep="/")


def write_adapters(
    folder: pathlib.Path,
    adapters: Mapping[str, np.ndarray],
    sources: Mapping[str, PretrainedEncoder],
    settings: LoraSettings,
    bases: Mapping[str, str],
    base_sha256: str,
) -> None:
    """Writes the adapters of a dual encoder, by path: `adapter/`, or a folder for each side if they are not shared.

    Args:
      folder: model folder.
      adapters: the matrices by path in the dual encoder.
      sources: pretrained encoders by side.
      settings: settings of the adapters.
      bases: names of the bases by side, for PEFT.
      base_sha256: hash of the base.
    """
    for group, side in SIDE_OF_GROUP.items():
        of_side = {path.partition("/")[2]: leaf for path, leaf in adapters.items() if path.startswith(f"{group}/")}
        if of_side:
            place = folder / ("adapter" if group == "shared" else f"{group}_adapter")
            write_adapter(place, of_side, sources[side], settings, bases[side], base_sha256)


def read_adapter(
    folder: pathlib.Path, source: PretrainedEncoder, settings: LoraSettings, base_sha256: str
) -> dict[str, np.ndarray]:
    """Reads the adapters of an encoder.

    Args:
      folder: folder in PEFT's format.
      source: the encoder.
      settings: settings that the adapters must have.
      base_sha256: hash of the base, which is compared if the file states one.

    Returns:
      The matrices by path in the tower, such as `encoder/layers_0/attention/query/lora_a`, float32.

    Raises:
      EndxError: the folder is incomplete, has a variant of LoRA that is not supported or other settings, or is of
        another base.
    """
    config = json_files.read_json_file(folder / ADAPTER)
    _check_config(config, settings, folder / ADAPTER)
    file, architecture = folder / WEIGHTS, source.architecture
    tensors = modernise(modernise(open_file(file), [PREFIX]), architecture.prefixes)
    if metadata_of(file).get(BASE_SHA256, base_sha256) != base_sha256:
        raise EndxError(
            f"{file}: the adapter is of another base than {source.folder}, whose weights have another hash: set "
            "model.pretrained to the base of the adapter"
        )
    stems = {re.sub(r"\.lora_[AB]\.weight$", "", name) for name in tensors}
    modules = {module: ours for module, ours in _modules(source).items() if module in stems}
    if unknown := stems - {*modules, architecture.pooler}:  # embeddings do not use the pooler
        raise EndxError(
            f"{file}: {min(unknown)!r} is no adapter of a linear layer in the blocks of {source.folder}, and no other "
            "part may have one: set model.pretrained to the base of the adapter"
        )
    for key, pattern in _patterns(modules, settings).items():
        if config.get(key) not in ({}, None, pattern):
            raise EndxError(f"{folder / ADAPTER}: {key} is not supported: all layers must have one rank and alpha")
    of_base, expected = shapes_of(source.config), dict[str, tuple[int, ...]]()
    for module, ours in modules.items():
        rows, columns = of_base[f"{ours[0]}/{KERNEL}"]
        rank = settings.rank * (len(ours) if config.get("rank_pattern") else 1)
        expected |= {f"{module}/lora_A": (rank, rows), f"{module}/lora_B": (len(ours) * columns, rank)}
    rules = [TensorRule(f"{path.replace('/', '.')}.weight", (path,)) for path in expected]
    matrices = to_ours(tensors, rules, expected, where=f"{file}, as an adapter of {source.folder}")
    params: dict[str, np.ndarray] = {}
    for module, ours in modules.items():
        count = len(ours)
        a_of_all, b_of_all = (np.asarray(matrices[module][name]) for name in ("lora_A", "lora_B"))
        parts = _split(a_of_all, b_of_all, count, settings.rank)
        if parts is None:
            raise EndxError(
                f"{file}: {module} holds {count} layers, whose adapters another library has mixed: "
                "merge the adapter into its base with PEFT's merge_and_unload"
            )
        for path, (a, b) in zip(ours, parts, strict=True):
            if a.any():
                params |= {f"{path}/{A}": np.ascontiguousarray(a.T), f"{path}/{B}": np.ascontiguousarray(b.T)}
    return params


def _check_config(config: Mapping, settings: LoraSettings, file: pathlib.Path) -> None:
    """Raises EndxError if an `adapter_config.json` asks for something else than the settings."""
    check_keys(config, file, ONLY, KNOWN)
    for key, name in SETTINGS.items():
        theirs, ours = config.get(key, False), getattr(settings, name)
        if theirs != ours:
            value = json_files.shown(theirs)
            raise EndxError(f"{file}: {key} is {value}, but model.lora.{name} is {ours}: set it to {value}")


def _split(a: np.ndarray, b: np.ndarray, count: int, rank: int) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Returns A and B of each layer that one matrix of the checkpoint holds; None if they can't be told apart."""
    rows = np.split(b, count)
    if len(a) == rank:  # which the layers share; else each has a block of it and of B: see `_joined`
        return [(a, part) for part in rows]
    blocks = [part[:, n * rank : (n + 1) * rank] for n, part in enumerate(rows)]
    alone = np.array_equal(_block_diagonal(blocks), b)
    return [*zip(np.split(a, count), blocks, strict=True)] if alone else None


def _block_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray:
    return np.block([[b if n == m else np.zeros_like(b) for m in range(len(blocks))] for n, b in enumerate(blocks)])


def _joined(ours: Sequence[str], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns A and B of one matrix of the checkpoint, in blocks of its layers, which are zero without adapter."""
    some = next(module for module in ours if f"{module}/{A}" in params)
    each = [
        {leaf: params.get(f"{module}/{leaf}", np.zeros_like(params[f"{some}/{leaf}"])).T for leaf in (A, B)}
        for module in ours
    ]
    joined = _block_diagonal([part[B] for part in each])
    return {"lora_A": np.concatenate([part[A] for part in each]), "lora_B": joined}


def _patterns(modules: Mapping[str, Sequence[str]], settings: LoraSettings) -> dict[str, dict]:
    """Returns PEFT's ranks and alphas of the matrices that hold several layers, with the factor of all adapters."""
    ranks = {theirs: settings.rank * len(ours) for theirs, ours in modules.items() if len(ours) > 1}
    power = 0.5 if settings.rank_stabilized else 1.0
    return {"rank_pattern": ranks, "alpha_pattern": {name: settings.factor * r**power for name, r in ranks.items()}}


def write_adapter(
    folder: pathlib.Path,
    params: Mapping[str, np.ndarray],
    source: PretrainedEncoder,
    settings: LoraSettings,
    base: str,
    base_sha256: str,
) -> None:
    """Writes the adapters of an encoder.

    Args:
      folder: output folder.
      params: matrices as `read_adapter` returns them.
      source: the encoder.
      settings: settings of the adapters.
      base: name of the base, for PEFT.
      base_sha256: hash of the base.
    """
    every = _modules(source)
    chosen = {theirs: ours for theirs, ours in every.items() if any(f"{module}/{A}" in params for module in ours)}
    tensors = {
        f"{PREFIX}{theirs}.{name}.weight": matrix
        for theirs, ours in chosen.items()
        for name, matrix in _joined(ours, params).items()
    }
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    write_file(folder / WEIGHTS, shapes, tensors.values(), {BASE_SHA256: base_sha256})
    # PEFT compares ends of names; where the last part is ambiguous, whole names are listed.
    last = {theirs: theirs.rpartition(".")[2] for theirs in every}
    short = {last[theirs] for theirs in chosen}
    exact = {theirs for theirs in every if last[theirs] in short} == set(chosen)
    exact = exact and source.architecture.pooler.rpartition(".")[2] not in short
    config = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "use_rslora": settings.rank_stabilized,
        "target_modules": sorted(short if exact else chosen),
        **_patterns(chosen, settings),
        "bias": "none",
        "inference_mode": True,
    }
    write_text(folder / ADAPTER, json.dumps(config, indent=1) + "\n")


def _modules(source: PretrainedEncoder) -> dict[str, tuple[str, ...]]:
    """Returns our paths of the linear layers that may have adapters, by the names of their matrices."""
    rules = source.architecture.rules(source.config, shapes_of(source.config))
    return {
        rule.theirs.removesuffix(".weight"): tuple(path.removesuffix(f"/{KERNEL}") for path in rule.ours)
        for rule in rules
        if is_linear(rule.ours[0])
    }
