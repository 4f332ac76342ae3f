"""Reads a StableHLO export: its programs stand where the towers would."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import jax
import numpy as np
from jax.sharding import Mesh

from endx_jax.batch import Tokens
from endx_jax.data.tokenization import Preparation, Tokenizer
from endx_jax.errors import EndxError
from endx_jax.files import sha256_of
from endx_jax.loading.about import ABOUT, About
from endx_jax.loading.embedding_model import EmbeddingModel, Source
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.pretrained.weights import SINGLE_FILE, read_tensors
from endx_jax.retrieval.encode import TextEncoder

if TYPE_CHECKING:
    from jax.export import Exported

Array = jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class ExportedTowers:
    """What `TextEncoder` asks of a `DualEncoder`, done by exported programs.

    Parameters are flat: `{"shared": {name: array}, "question": ..., "answer": ...}`.

    Attributes:
      question: the sha256 of the question tower's program.
      answer: the answer tower's.
      programs: by their sha256.
    """

    question: str
    answer: str
    programs: Mapping[str, "Exported"]

    def tower(self, side: str) -> str:
        """What identifies the program of one side, `question` or `answer`."""
        return {"question": self.question, "answer": self.answer}[side]

    def tower_params(self, params: dict, side: str) -> dict:
        """The arguments of one side's program, by name."""
        return params.get("shared", {}) | params.get(side, {})

    def encode(self, params: dict, side: str, tokens: Tokens) -> Array:
        """Embeds tokens [B, L] of one side: float32 [B, E]."""
        program = self.programs[self.tower(side)]
        return program.call(self.tower_params(params, side), tokens.ids, tokens.mask)


class ProgramEncoder(TextEncoder):
    """Encodes with exported programs, under the identity of the model that they were exported from."""

    def __init__(self, towers: ExportedTowers, preparations: Mapping[str, Preparation], mesh: Mesh, identity: str):
        super().__init__(cast(DualEncoder, towers), preparations, mesh)
        self._identity = identity

    def identity(self, params: dict) -> str:
        """The identity of the exported model, whose indexes serve here too."""
        return self._identity


def load_programs(folder: pathlib.Path, about: About, mesh: Mesh, name: str) -> EmbeddingModel:
    """Loads a StableHLO export.

    Args:
      folder: of the export.
      about: its `endx.json`.
      mesh: over which batches are split.
      name: what the model is called.

    Raises:
      EndxError: when a file is missing or can't be read, or `jax.export` lacks the package it reads with.
    """
    identities = {side: stated.sha256 for side, stated in about.sides.items()}
    programs = {
        sha256: _program(folder / name, sha256)
        for name, sha256 in {(stated.program, stated.sha256) for stated in about.sides.values()}
    }
    _check_weights(folder / SINGLE_FILE, about.weights_sha256)
    params: dict[str, dict[str, np.ndarray]] = {}
    for full_name, array in read_tensors(folder).items():
        owner, _, own_name = full_name.partition("/")
        params.setdefault(owner, {})[own_name] = array
    tokenizers = {place: Tokenizer(folder / place) for place in {about.sides[side].folder for side in SIDES}}
    preparations = {
        side: Preparation(tokenizers[stated.folder], stated.length, stated.prompt)
        for side, stated in about.sides.items()
    }
    encoder = ProgramEncoder(ExportedTowers(**identities, programs=programs), preparations, mesh, about.identity)
    return EmbeddingModel(
        name,
        encoder,
        jax.device_put(params),
        cosine=about.cosine,
        source=Source({}),
        named_prompts=about.prompts,
        default_prompt=about.sides["question"].prompt,
    )


def _check_weights(file: pathlib.Path, sha256: str) -> None:
    """Raises EndxError unless these are the weights that the export was written with."""
    if file.is_file() and sha256_of(file) != sha256:
        raise EndxError(f"{file} is damaged: it has not the sha256 that {ABOUT} says; export the model again")


def _program(file: pathlib.Path, sha256: str) -> "Exported":
    from jax import export

    try:
        contents = file.read_bytes()
    except OSError as failure:
        raise EndxError(f"{file} can't be read ({failure.strerror}); export the model again") from None
    if hashlib.sha256(contents).hexdigest() != sha256:
        raise EndxError(f"{file} is damaged: it has not the sha256 that {ABOUT} says; export the model again")
    try:
        return export.deserialize(bytearray(contents))
    except ImportError:
        raise EndxError(f"reading {file} needs another package: pip install flatbuffers") from None
    except ValueError as failure:
        reason = str(failure).partition("\n")[0]
        raise EndxError(f"{file} is no program that this JAX can read ({reason}); export the model again") from None
