"""Loading of StableHLO exports, whose programs replace the towers."""

import dataclasses
import hashlib
import os
import pathlib
import struct
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import jax
import numpy as np
from jax.sharding import Mesh

from endx_jax.batch import Tokens
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.errors import EndxError, first_line
from endx_jax.files import sha256_of
from endx_jax.inference.about import ABOUT, About
from endx_jax.inference.embedding_model import EmbeddingModel, Source
from endx_jax.inference.encode import TextEncoder
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.pretrained.weights import SINGLE_FILE, read_tensors

if TYPE_CHECKING:
    from jax.export import Exported

Array = jax.Array

# Exceptions that `jax.export` raises for damaged programs, since it does not validate the file.
DAMAGED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
# Parses a program in a subprocess: the parser of a damaged program can use up all memory or abort the process.
PARSE = """
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
except ImportError:  # Windows
    pass
from jax import export
with open(sys.argv[1], "rb") as program:
    export.deserialize(bytearray(program.read())).mlir_module()
"""
PARSE_MEMORY, PARSE_SECONDS = 4_000_000_000, 120
TOKEN_TABLE = "token_embedder/embedding"


@dataclasses.dataclass(frozen=True, eq=False)
class ExportedTowers:
    """Dual encoder of exported programs, with the interface that `TextEncoder` needs.

    Parameters are flat: `{"shared": {name: array}, "question": ..., "answer": ...}`.

    Attributes:
      question: sha256 of the question tower's program.
      answer: sha256 of the answer tower's program.
      programs: programs by sha256.
    """

    question: str
    answer: str
    programs: Mapping[str, "Exported"]

    def tower(self, side: str) -> str:
        """Returns the sha256 of the program of one side, `question` or `answer`."""
        return {"question": self.question, "answer": self.answer}[side]

    def tower_params(self, params: dict, side: str) -> dict:
        """Returns the arguments of one side's program by name."""
        return params.get("shared", {}) | params.get(side, {})

    def encode(self, params: dict, side: str, tokens: Tokens) -> Array:
        """Embeds tokens [B, L] of one side: float32 [B, E]."""
        program = self.programs[self.tower(side)]
        return program.call(self.tower_params(params, side), tokens.ids, tokens.mask)


class ProgramEncoder(TextEncoder):
    """Text encoder of exported programs, with the identity of the exported model."""

    def __init__(self, towers: ExportedTowers, processors: Mapping[str, TextProcessor], mesh: Mesh, identity: str):
        super().__init__(cast(DualEncoder, towers), processors, mesh)
        self._identity = identity

    def identity(self, params: dict) -> str:
        """Returns the identity of the exported model, so that its indexes can be searched with the export."""
        return self._identity


def load_programs(folder: pathlib.Path, about: About, mesh: Mesh, name: str) -> EmbeddingModel:
    """Loads a StableHLO export.

    Arguments are those of `saved.load_towers`.

    Raises:
      EndxError: a file is missing, damaged or can't be read, or the package flatbuffers is not installed.
    """
    identities = {side: stated.sha256 for side, stated in about.sides.items()}
    programs = {
        sha256: _program(folder / name, sha256)
        for name, sha256 in {(stated.program, stated.sha256) for stated in about.sides.values()}
    }
    weights = folder / SINGLE_FILE
    if weights.is_file() and sha256_of(weights) != about.weights_sha256:
        raise EndxError(f"{weights} is damaged: its sha256 is not the one in {ABOUT}; export the model again")
    params: dict[str, dict[str, np.ndarray]] = {}
    for full_name, array in read_tensors(folder).items():
        owner, _, own_name = full_name.partition("/")
        params.setdefault(owner, {})[own_name] = array
    tokenizers = {place: Tokenizer(folder / place) for place in {about.sides[side].folder for side in SIDES}}
    processors = {
        side: TextProcessor(tokenizers[stated.folder], stated.length, stated.prompt)
        for side, stated in about.sides.items()
    }
    towers = ExportedTowers(**identities, programs=programs)
    for side, stated in about.sides.items():
        _check_fits(towers, params, side, processors[side].tokenizer, about.width, folder / stated.program)
    encoder = ProgramEncoder(towers, processors, mesh, about.identity)
    return EmbeddingModel(
        name,
        encoder,
        jax.device_put(params),
        cosine=about.cosine,
        source=Source({}),
        named_prompts=about.prompts,
        default_prompt=about.default_prompt,
    )


def _program(file: pathlib.Path, sha256: str) -> "Exported":
    from jax import export

    try:
        contents = file.read_bytes()
    except OSError as failure:
        raise EndxError(f"{file} can't be read ({failure.strerror}); export the model again") from None
    if hashlib.sha256(contents).hexdigest() != sha256:
        raise EndxError(f"{file} is damaged: its sha256 is not the one in {ABOUT}; export the model again")
    try:
        program = export.deserialize(bytearray(contents))
    except ImportError:
        raise EndxError(f"{file} can't be read without the package flatbuffers: pip install flatbuffers") from None
    except (*DAMAGED, struct.error) as failure:
        raise EndxError(
            f"{file} is not a program that this JAX can read ({first_line(failure)}); export the model again"
        ) from None
    _check_parses(file)
    return program


def _check_parses(file: pathlib.Path) -> None:
    """Raises EndxError unless the StableHLO of a program can be parsed within limits of memory and time."""
    command = [sys.executable, "-c", PARSE, str(file), str(PARSE_MEMORY)]
    try:
        done = subprocess.run(
            command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, timeout=PARSE_SECONDS, check=False
        )
        reason = "" if done.returncode == 0 else f"its parser ended with status {done.returncode}"
    except subprocess.TimeoutExpired:
        reason = f"it can't be parsed within {PARSE_SECONDS} s"
    if reason:
        raise EndxError(f"{file} is not a program that this JAX can read ({reason}); export the model again")


def _check_fits(
    towers: ExportedTowers, params: dict, side: str, tokenizer: Tokenizer, width: int, file: pathlib.Path
) -> None:
    """Raises EndxError unless a program takes these weights and the tokenizer's ids and returns [1, `width`]."""
    one = jax.ShapeDtypeStruct((1, 1), np.int32), jax.ShapeDtypeStruct((1, 1), np.bool_)
    try:
        result = jax.eval_shape(lambda params, ids, mask: towers.encode(params, side, Tokens(ids, mask)), params, *one)
    except (*DAMAGED, struct.error) as failure:
        raise EndxError(
            f"{file} can't be used with the weights in {SINGLE_FILE} ({first_line(failure)}); export the model again"
        ) from None
    if getattr(result, "shape", None) != (1, width):
        raise EndxError(f"{file} does not return embeddings of width {width}, as in {ABOUT}; export the model again")
    table = towers.tower_params(params, side).get(TOKEN_TABLE)
    if table is not None:
        tokenizer.check_matches(len(table), file.parent)
