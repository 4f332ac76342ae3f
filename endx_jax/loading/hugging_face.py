"""Reads a Hugging Face export of ours: the encoders in their folders, with the head that `endx.json` describes."""

import pathlib

from jax.sharding import Mesh

from endx_jax.loading.about import About
from endx_jax.loading.embedding_model import EmbeddingModel
from endx_jax.loading.folder import assemble
from endx_jax.pretrained import PretrainedEncoder
from endx_jax.pretrained.json_files import read_json
from endx_jax.pretrained.sentence_transformers import Dense, Head, Usage


def load_towers(folder: pathlib.Path, about: About, mesh: Mesh, name: str) -> EmbeddingModel:
    """Loads a Hugging Face export.

    Args:
      folder: of the export.
      about: its `endx.json`.
      mesh: over which batches are split.
      name: what the model is called.

    Raises:
      EndxError: when a file is missing or can't be read, or they do not fit together.
    """
    sources = {}
    for side, stated in about.sides.items():
        head = Head(
            encoder=folder / stated.folder,
            pooling=about.pooling,
            projection=Dense(folder / stated.projection, about.width) if stated.projection else None,
            normalize=about.normalize,
            max_length=stated.length,
        )
        sources[side] = PretrainedEncoder(head.encoder, head, read_json(head.encoder / "config.json", dict))
    usage = Usage(about.prompts, default_prompt=about.prompts["query"], cosine=about.cosine)
    return assemble(name, sources, usage, mesh)
