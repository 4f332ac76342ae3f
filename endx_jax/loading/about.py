"""`endx.json`, which says what an export of ours is, where its format has no file of its own for that."""

import dataclasses
import pathlib
from collections.abc import Mapping

from endx_jax.errors import EndxError
from endx_jax.models.dual_encoder import SIDES, TASKS
from endx_jax.pretrained.json_files import read_json

ABOUT, VERSION = "endx.json", 1
HUGGING_FACE, STABLEHLO = "hugging-face", "stablehlo"


@dataclasses.dataclass(frozen=True)
class Side:
    """How the texts of one side, `question` or `answer`, are encoded.

    Attributes:
      folder: of the tokenizer, and of a Hugging Face encoder.
      prompt: stands before every text.
      length: tokens a text is cut to, prompt and special tokens included.
      projection: Hugging Face: the folder of the matrix that maps pooled encodings; empty where there is none.
      program: StableHLO: the file of the tower's program.
      sha256: StableHLO: of that file.
    """

    folder: str
    prompt: str
    length: int
    projection: str = ""
    program: str = ""
    sha256: str = ""


@dataclasses.dataclass(frozen=True)
class About:
    """The contents of an `endx.json`.

    Attributes:
      format: `hugging-face` or `stablehlo`.
      name: what was exported.
      width: E, of an embedding.
      normalize: whether embeddings have unit norm.
      cosine: whether they are compared by cosine rather than inner product.
      sides: `question` and `answer`.
      pooling: Hugging Face: `mean` or `first`.
      identity: StableHLO: of the model that was exported, so that its indexes serve the export too.
      weights_sha256: StableHLO: of the weights' file.
      version: of these keys.
    """

    format: str
    name: str
    width: int
    normalize: bool
    cosine: bool
    sides: Mapping[str, Side]
    pooling: str = ""
    identity: str = ""
    weights_sha256: str = ""
    version: int = VERSION

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts by the names that sentence-transformers has for the sides."""
        return {task: self.sides[side].prompt for side, task in TASKS.items()}


def read_about(folder: pathlib.Path) -> About:
    """Reads an export's `endx.json`.

    Raises:
      EndxError: when it can't be read, or is none that this version wrote.
    """
    file = folder / ABOUT
    contents = read_json(file, dict)
    try:
        about = About(**contents)
        about = dataclasses.replace(about, sides={side: Side(**about.sides[side]) for side in SIDES})  # type: ignore[arg-type]
    except (TypeError, KeyError) as failure:
        raise EndxError(f"{file} does not describe an export: {failure}; export the model again") from None
    if about.version != VERSION or about.format not in (HUGGING_FACE, STABLEHLO):
        raise EndxError(
            f"{file} describes version {about.version} of format {about.format!r}; this endx_jax reads version "
            f"{VERSION} of {HUGGING_FACE} and {STABLEHLO}: export the model again"
        )
    return about
