"""Models to export, in float32 with unstacked layers, and the files in which all formats write them."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.files import write_text
from endx_jax.inference import EmbeddingModel
from endx_jax.inference.encode import TextEncoder
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.pooling import POOLINGS
from endx_jax.models.static import NoEncoder
from endx_jax.models.tower import Tower
from endx_jax.pretrained import PretrainedTokens
from endx_jax.pretrained.stored import write_file
from endx_jax.pretrained.weights import SINGLE_FILE, paths, to_theirs
from endx_jax.settings import require


def plain(model: EmbeddingModel) -> EmbeddingModel:
    """Returns a model to export: with float32 towers and parameters, and the last part of its name.

    Raises:
      EndxError: the model truncates its embeddings or pools token vectors.
    """
    if model.truncate_dim is not None:
        raise EndxError(
            f"{model.name} truncates embeddings to {model.truncate_dim} dimensions (truncate_dim), which exports "
            "don't support: remove truncate_dim from its configuration, and truncate embeddings where you use them"
        )
    require(
        model.token_pooling.factor == 1,
        f"{model.name} pools token vectors (HierarchicalTokenPooling), which exports don't support: remove it from "
        "its modules.json, and give pool_factor where you encode documents",
    )
    trained = model.encoder.model
    question = in_float32(trained.question)
    answer = question if trained.answer == trained.question else in_float32(trained.answer)
    towers = dataclasses.replace(trained, question=question, answer=answer)
    return dataclasses.replace(
        model,
        name=pathlib.Path(model.name).resolve().name,
        encoder=TextEncoder(towers, model.encoder.processors, model.encoder.mesh),
        params=jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), jax.device_get(model.params)),
    )


def one_tower(model: EmbeddingModel) -> bool:
    """Returns true if both sides have one tower and tokenizer."""
    question, answer = (model.encoder.processors[side].tokenizer for side in SIDES)
    return model.encoder.model.has_one_tower(model.params) and question.same_ids(answer)


def projection(model: EmbeddingModel, side: str) -> dict[str, np.ndarray] | None:
    """Returns a projection's parameters, `kernel` float32 [P, E] and perhaps `bias` [E]; None without one."""
    return model.encoder.model.tower_params(model.params, side).get("projection")


def poolings(model: EmbeddingModel) -> dict[str, str]:
    """Returns the name of each side's pooling, for sentence-transformers' modules.

    Raises:
      EndxError: a tower has a part without a module, or the towers are not both normalised or both not.
    """
    towers = {side: model.encoder.model.tower(side) for side in SIDES}
    names, found = {function: name for name, function in POOLINGS.items()}, {}
    for side, tower in towers.items():
        for part in ("token_weights", "layer_weights", "head"):
            if getattr(tower, part) is not None:
                raise EndxError(_no_module(f"a tower with {part}"))
        if isinstance(tower.encoder, NoEncoder):
            raise EndxError(_no_module("token vectors without an encoder"))
        if isinstance(model.source.encoders[side], PretrainedTokens):
            raise EndxError(_no_module(f"a new encoder ({type(tower.encoder).__name__})"))
        if tower.pooling not in names:
            raise EndxError(_no_module("multi-hop pooling"))
        found[side] = names[tower.pooling]
    if towers["question"].normalize != towers["answer"].normalize:
        raise EndxError(_no_module("a norm of one side only"))
    return found


def in_float32(tower: Tower) -> Tower:
    """Returns the tower in float32, without a scan and without rematerialisation."""
    options: dict[str, Any] = {"dtype": jnp.float32, "remat": "none", "scan_layers": False}
    supported = {name: value for name, value in options.items() if hasattr(tower.encoder, name)}
    if hasattr(tower.encoder, "config"):
        supported["config"] = dataclasses.replace(tower.encoder.config, product_dtype="float32")
    return tower.clone(
        token_embedder=tower.token_embedder.clone(dtype=jnp.float32), encoder=tower.encoder.clone(**supported)
    )


def _no_module(part: str) -> str:
    return f"the format sentence-transformers does not support {part}: use --format=stablehlo"


# Keys of config.json that describe the initial checkpoint only, or code that an export does not need.
OF_THE_CHECKPOINT = ("_name_or_path", "auto_map", "torch_dtype", "transformers_version")


def write_transformer_folder(folder: pathlib.Path, model: EmbeddingModel, side: str, length: int) -> None:
    """Writes a side's `config.json`, `model.safetensors` (float32) and tokenizer, for at most `length` tokens."""
    source, params = model.source.encoders[side], model.encoder.model.tower_params(model.params, side)
    architecture = source.architecture
    if architecture.exported_type:
        fields = {"model_type": architecture.exported_type, **source.config.to_hugging_face()}
    else:
        fields = {name: value for name, value in source.hugging_face.items() if name not in OF_THE_CHECKPOINT}
    described = {**fields, "architectures": [architecture.transformers_class], "dtype": "float32"}
    write_json(folder / "config.json", described)
    groups = {group: params[group] for group in ("token_embedder", "encoder")}
    tensors = to_theirs(groups, architecture.rules(source.config, paths(groups)))
    write_tensors(folder / SINGLE_FILE, tensors | _unused(architecture.pooler, source.config.width))
    write_tokenizer(folder, model, side, length)


def write_tokenizer(folder: pathlib.Path, model: EmbeddingModel, side: str, length: int) -> None:
    """Writes the tokenizer's files with the maximum length."""
    model.encoder.processors[side].tokenizer.save(folder)
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
