"""Model folder of a run, written when training ends and read by `endx_jax.load`.

`endx.json` describes the towers by their settings. `config.json` and the tokenizer's files are those of the pretrained
model (`answer/` has those of the answer tower, if it has another one). `towers.safetensors` holds the parameters,
float32, under their paths, such as `shared/encoder/layers_0/mlp_up/kernel`. Any tower that `config.model` describes,
with new encoders too, can be loaded without the method that trained it. If a method has added heads to the towers, the
description names the method, whose entry in `models.heads.HEADS` makes them.
"""

import collections
import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from endx_jax import json_files, pretrained
from endx_jax.errors import EndxError, nearest
from endx_jax.files import sha256_of, write_text
from endx_jax.inference.embedding_model import EmbeddingModel, ModelSource
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.folder import NO_EMBEDDINGS, text_processors
from endx_jax.inference.manifest import MANIFEST, TOWERS, ModelManifest, SideManifest, read_about
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.heads import HEADS, MakeHead
from endx_jax.models.sharding_hints import platform
from endx_jax.parallel.agreement import on_primary
from endx_jax.parallel.distributed import is_primary
from endx_jax.parallel.sharding import fetch_whole, parameter_paths, place, state_shardings
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.stored import StoredArray, open_file, write_file
from endx_jax.pretrained.towers import build_dual_encoder, encoder_config
from endx_jax.settings import from_mapping

MODEL, METHOD = "model", "method.json"  # model folder in a workdir, and the file in it that names the method
WEIGHTS = "towers.safetensors"

# Settings of a run's model that are files in the folder, fields of `SideManifest`, or without effect on a model.
ELSEWHERE = ("pretrained", "answer_pretrained", "init_from", "question_prompt", "answer_prompt", "lora")


def save_model(
    folder: pathlib.Path,
    name: str,
    settings: ModelSettings,
    encoder: TextEncoder,
    params: dict,
    places: Mapping[str, str],
    method: Mapping[str, Any] | None = None,
    hybrid: Mapping[str, Any] | None = None,
    teacher: str = "",
) -> None:
    """Writes the weights of a trained model, one array at a time, and then its description.

    The folder has no description until the weights are written. Every process must call this; the primary writes.

    Args:
      folder: model folder, which already contains the configurations and tokenizers of the pretrained models.
      name: name of the model, such as that of its workdir.
      settings: settings of the towers, `config.model`.
      encoder: towers, and text processors of each side.
      params: parameters of the towers; may be split over processes.
      places: subfolder of each side's `config.json` and tokenizer.
      method: name and settings of a method that added heads to the towers.
      hybrid: fusion with BM25, as in `ModelManifest`.
      teacher: identity of the model whose embeddings these approximate, as in `ModelManifest`.

    Raises:
      EndxError: the folder can't be written to.
    """
    leaves = parameter_paths(params)
    arrays = map(fetch_whole, leaves.values())
    failure, sha256 = None, ""
    if is_primary():
        try:
            (folder / MANIFEST).unlink(missing_ok=True)
            sha256 = write_file(folder / WEIGHTS, {path: leaf.shape for path, leaf in leaves.items()}, arrays)
        except EndxError as raised:
            failure = raised
    collections.deque(arrays, maxlen=0)  # every process must take part in fetching arrays that are split

    def describe() -> None:
        if failure:
            raise failure
        towers = {key: value for key, value in dataclasses.asdict(settings).items() if key not in ELSEWHERE}
        processors = encoder.processors.items()
        sides = {side: SideManifest(folder=places[side], **processor.stated()) for side, processor in processors}
        about = ModelManifest(
            TOWERS,
            name,
            encoder.width(params),
            normalize=settings.normalize,
            cosine=settings.normalize,
            sides=sides,
            teacher=teacher,
            towers=towers,
            method=method,
            hybrid=hybrid,
            weights_sha256=sha256,
        )
        write_text(folder / MANIFEST, json.dumps(dataclasses.asdict(about), indent=1) + "\n")

    on_primary(describe, "model-saved")


def load_towers(folder: pathlib.Path, about: ModelManifest, mesh: Mesh, name: str) -> EmbeddingModel:
    """Loads the model of a folder that `save_model` wrote, described by `about`.

    Raises:
      EndxError: a file is missing or damaged, or the files do not match.
    """
    where = f"{folder / MANIFEST}: 'towers'"
    settings = from_mapping(ModelSettings, json_files.as_object(about.towers, where), where)
    read = pretrained.load_tokens if settings.encoder else pretrained.load_encoder
    sources = {side: read(str(folder / stated.folder)) for side, stated in about.sides.items()}
    for side, source in sources.items():
        length, positions = about.sides[side].length, encoder_config(settings, source).positions
        if positions is not None and length > positions:
            raise EndxError(
                f"{folder / MANIFEST}: the length of {side} is {length}; its encoder has {positions} positions"
            )
    folders = {side: source.folder for side, source in sources.items()}
    processors = text_processors(sources, folders, about.sides, saved=True)
    dual_encoder = build_dual_encoder(settings, sources, platform(mesh), _make_head(about, folder), processors)
    params = _as_tree(dual_encoder, read_params(folder, about), folder)
    return EmbeddingModel(
        name,
        TextEncoder(dual_encoder, processors, mesh),
        place(params, state_shardings(params, mesh)),
        cosine=about.cosine,
        source=ModelSource(sources),
        named_prompts=about.prompts,
        default_prompt=about.default_prompt,
    )


def _make_head(about: ModelManifest, folder: pathlib.Path) -> MakeHead | None:
    """Returns the function that makes the towers' heads, from the method in the description; None without a method.

    Raises:
      EndxError: this process knows no heads of the method, or its settings are wrong.
    """
    if about.method is None:
        return None
    where = f"{folder / MANIFEST}: 'method'"
    name = json_files.text_at(about.method, "name", where)
    if name not in HEADS:
        raise EndxError(
            f"{where} is {json_files.shown(name)}, and the methods with heads are {', '.join(HEADS)}"
            f"{nearest(name, HEADS)}: call endx_jax.methods.register(METHOD) of your own method first"
        )
    settings = json_files.as_object(about.method.get("settings"), f"{where}: 'settings'")
    return HEADS[name](settings, f"{where}: settings")


def described_folder(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder of `endx.json`: `path` for an export, the model folder for a workdir; None for other folders.

    Raises:
      EndxError: `path` is a workdir whose model has no embeddings, or whose training has not ended.
    """
    if not (path / MODEL).is_dir():
        return path if (path / MANIFEST).is_file() else None
    check_embeds(path)
    if not (path / MODEL / MANIFEST).is_file():
        raise EndxError(
            f"{path} holds a run whose training has not ended, and no model yet: run its training command again to "
            "resume it; with train.stop_at_step=N it ends at step N"
        )
    return path / MODEL


def embeds(workdir: pathlib.Path) -> bool:
    """Returns true if the model of a run embeds texts, false if it scores pairs of texts."""
    return json_files.read_optional(workdir / MODEL / METHOD).get("embeds", True) is not False


def check_embeds(workdir: pathlib.Path) -> None:
    """Raises EndxError if the model of a run scores pairs instead of embedding texts."""
    if not embeds(workdir):
        raise EndxError(NO_EMBEDDINGS.format(workdir))


def read_params(folder: pathlib.Path, about: ModelManifest) -> dict[str, StoredArray]:
    """Returns the parameters of a model folder by path; their values are read on use.

    Raises:
      EndxError: the file is missing or damaged.
    """
    file = folder / WEIGHTS
    if not file.is_file() or sha256_of(file) != about.weights_sha256:
        raise EndxError(f"{file} is missing, or its sha256 is not the one in {MANIFEST}: copy the model again")
    return open_file(file)


def params_of_run(workdir: pathlib.Path) -> dict[str, StoredArray]:
    """Returns the parameters of another run's model by path; their values are read on use.

    Raises:
      EndxError: the run has no model, or it is damaged.
    """
    folder = described_folder(workdir)
    if not folder:
        raise EndxError(f"{workdir} holds no run: it has no folder {MODEL!r}")
    return read_params(folder, read_about(folder))


def _as_tree(dual_encoder: DualEncoder, params: Mapping[str, StoredArray], folder: pathlib.Path) -> dict:
    """Returns parameters by path as the parameter tree of the dual encoder.

    Raises:
      EndxError: a parameter is missing or unknown, or has another shape.
    """
    tree = jax.eval_shape(dual_encoder.init, jax.random.key(0))
    expected = parameter_paths(tree)
    for path in [*expected, *params]:
        shapes = [leaves[path].shape if path in leaves else "none" for leaves in (expected, params)]
        if shapes[0] != shapes[1]:
            raise EndxError(
                f"{folder / WEIGHTS} does not match {MANIFEST}: {path} has the shape {shapes[1]} instead of "
                f"{shapes[0]}; copy the model again"
            )
    return jax.tree.unflatten(jax.tree.structure(tree), [params[path] for path in expected])
