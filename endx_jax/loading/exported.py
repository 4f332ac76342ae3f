"""The model of an export that `endx.json` describes."""

import pathlib

from jax.sharding import Mesh

from endx_jax.loading.about import HUGGING_FACE, read_about
from endx_jax.loading.embedding_model import EmbeddingModel
from endx_jax.loading.hugging_face import load_towers
from endx_jax.loading.stablehlo import load_programs


def load_export(folder: pathlib.Path, mesh: Mesh, name: str) -> EmbeddingModel:
    """Loads a Hugging Face or StableHLO export of ours.

    Args:
      folder: of the export.
      mesh: over which batches are split.
      name: what the model is called.

    Raises:
      EndxError: when the export is not whole, or of another version.
    """
    about = read_about(folder)
    load = load_towers if about.format == HUGGING_FACE else load_programs
    return load(folder, about, mesh, name)
