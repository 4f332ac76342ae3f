"""Hugging Face export: one folder per encoder, and a script that computes embeddings.

`endx.json` describes what `config.json` cannot: pooling, prompts, lengths, projection and norm. `encode.py` reads it
and needs PyTorch, transformers and safetensors only.
"""

import dataclasses
import pathlib
import shutil

from endx_jax.errors import EndxError
from endx_jax.export.towers import Towers
from endx_jax.export.transformer_folder import write_json, write_tensors, write_transformer_folder
from endx_jax.inference.about import ABOUT, HUGGING_FACE, About, Side
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.tower import Projection
from endx_jax.pretrained.weights import SINGLE_FILE

EXAMPLE = pathlib.Path(__file__).parent / "scripts" / "encode_with_pytorch.py"


def write(folder: pathlib.Path, towers: Towers) -> None:
    """Writes the towers into `folder`.

    Raises:
      EndxError: the towers have a part that this format does not support.
    """
    pooling, sides = towers.pooling(HUGGING_FACE), {}
    for side in SIDES:
        processor, projection, place = towers.processors[side], towers.projection(side), ""
        if projection is not None:
            if towers.dual_encoder.tower(side).projection != Projection(towers.width):
                raise EndxError(
                    f"the format {HUGGING_FACE} does not support a projection with bias or tanh: use "
                    "--format=sentence-transformers"
                )
            place = "projection" if "projection" in towers.params.get("shared", {}) else f"{side}/projection"
            write_tensors(folder / place / SINGLE_FILE, {"linear.weight": projection["kernel"].T})
        encoder = "." if towers.shared_encoder else side
        sides[side] = Side(encoder, processor.prompt, processor.length, place)
    # A shared encoder is written twice; the side with the greater length is last, so that this length is kept.
    for side in sorted(SIDES, key=lambda side: sides[side].length):
        write_transformer_folder(folder / sides[side].folder, towers, side, sides[side].length)
    about = About(HUGGING_FACE, towers.name, towers.width, towers.normalize, towers.cosine, sides, pooling)
    write_json(folder / ABOUT, dataclasses.asdict(about))
    shutil.copyfile(EXAMPLE, folder / "encode.py")
