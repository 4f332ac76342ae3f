"""Manifest of a model, `endx.json`, and the folder that contains it."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from endx_jax import json_files
from endx_jax.data.tokenization import TextOptions
from endx_jax.errors import EndxError
from endx_jax.files import write_text
from endx_jax.models.dual_encoder import SIDES, TASKS
from endx_jax.settings import check_range, from_mapping

MANIFEST, VERSION = "endx.json", 1
STABLEHLO, TOWERS = "stablehlo", "towers"
WEIGHTS = "towers.safetensors"
MODEL, METHOD = "model", "method.json"  # model folder in a workdir, and the file in it that names the method
INSTEAD = "load the run that it came from, or an export with --format=sentence-transformers"
NO_EMBEDDINGS = (
    "{} holds a pair classifier or reranker, which reads question and answer together and has no embeddings: pass it "
    "to --rerank of `endx evaluate` or `endx search`, together with an embedding model; in Python, to "
    "endx_jax.experiment.saved_model.load_pair_scorer"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SideManifest(TextOptions):
    """Encoding of the texts of one side, `question` or `answer`.

    Attributes:
      folder: folder of the tokenizer, and in model folders of the encoder's `config.json`.
      program: StableHLO only: file of the tower's program.
      sha256: StableHLO only: sha256 of that file.
    """

    folder: str
    program: str = ""
    sha256: str = ""


@dataclasses.dataclass(frozen=True)
class ModelManifest:
    """Contents of an `endx.json`.

    Attributes:
      format: `stablehlo`, or `towers` for the model folder of a run (see `inference.saved`).
      name: name of the model.
      width: embedding width E.
      normalize: true if embeddings have unit norm.
      cosine: true if they are compared by cosine rather than inner product.
      sides: `question` and `answer`.
      identity: StableHLO only: identity of the exported model, which its indexes name.
      teacher: identity of the model whose embeddings these approximate, so that its indexes can be searched with this
        model; empty if there is none.
      towers: model folders only: settings of the towers, as in `config.model`.
      method: model folders only: `name` and `settings` of a method that added a head to the towers; None without one.
      hybrid: model folders only: fusion with BM25, the fields of `ranking.hybrid.Hybrid`; None for the default.
      system: model folders only: `trained`, or `untrained` for the model before training, if search is better with it.
      weights_sha256: sha256 of the file of weights.
      version: version of this format.
    """

    format: str
    name: str
    width: int
    normalize: bool
    cosine: bool
    sides: Mapping[str, SideManifest]
    identity: str = ""
    teacher: str = ""
    weights_sha256: str = ""
    towers: Mapping[str, Any] | None = None
    method: Mapping[str, Any] | None = None
    hybrid: Mapping[str, Any] | None = None
    system: str = "trained"
    version: int = VERSION

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by sentence-transformers' names of the sides, `query` and `document`."""
        return {task: self.sides[side].prompt for side, task in TASKS.items()}

    @property
    def default_prompt(self) -> str:
        """Prompt of texts that are of no side: that of both sides, or none if they differ."""
        prompts = set(self.prompts.values())
        return prompts.pop() if len(prompts) == 1 else ""


def write_manifest(folder: pathlib.Path, manifest: ModelManifest) -> None:
    """Writes the `endx.json` of a folder."""
    write_text(folder / MANIFEST, json.dumps(dataclasses.asdict(manifest), indent=1) + "\n")


def read_manifest(folder: pathlib.Path) -> ModelManifest:
    """Reads the `endx.json` of a folder.

    Raises:
      EndxError: the file can't be read, names a file outside the folder, has another version, or describes an export
        as StableHLO, which runs without endx_jax.
    """
    file = folder / MANIFEST
    contents = json_files.read_json_file(file)
    version, kind = contents.get("version", VERSION), contents.get("format")
    if kind == STABLEHLO:
        raise EndxError(f"{folder} is an export as StableHLO, which its encode.py runs without endx_jax: {INSTEAD}")
    if version != VERSION or kind != TOWERS:
        raise EndxError(
            f"{file} describes version {json_files.shown(version)} of format {json_files.shown(kind)}; this endx_jax "
            f"reads version {VERSION} of {TOWERS}: {INSTEAD}"
        )
    sides = json_files.value(contents, "sides", str(file))
    read = {side: _side(folder, json_files.value(sides, side, f"{file}: 'sides'"), f"{file}: {side}") for side in SIDES}
    manifest = from_mapping(ModelManifest, {**contents, "sides": read}, str(file))
    check_range(f"{file}: 'width'", manifest.width, 1, 2**31 - 1)
    return manifest


def _side(folder: pathlib.Path, contents: object, where: str) -> SideManifest:
    side = from_mapping(SideManifest, json_files.as_object(contents, where), where)
    check_range(f"{where}: 'length'", side.length, 1, 2**31 - 1)
    for name in ("folder", "program"):
        json_files.inside(folder, getattr(side, name), f"{where}: {name!r}")
    return side


def model_folder(path: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder of `endx.json`: `path` for an export, the model folder for a workdir; None for other folders.

    Raises:
      EndxError: `path` is a workdir whose model has no embeddings, or whose training has not ended.
    """
    if (path / MANIFEST).is_file():
        return path
    if not any((path / MODEL / name).is_file() for name in (METHOD, MANIFEST)):  # other tools have such folders too
        return None
    if not embeds(path):
        raise EndxError(NO_EMBEDDINGS.format(path))
    if not (path / MODEL / MANIFEST).is_file():
        raise EndxError(
            f"{path} holds a run whose training has not ended, and no model yet: run its training command again to "
            "resume it; with train.stop_at_step=N it ends at step N"
        )
    return path / MODEL


def embeds(workdir: pathlib.Path) -> bool:
    """Returns true if the model of a run embeds texts, false if it scores pairs of texts."""
    return json_files.read_optional(workdir / MODEL / METHOD).get("embeds", True) is not False
