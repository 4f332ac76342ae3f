"""Loading of Hugging Face and sentence-transformers folders, and of our exports in Hugging Face's format."""

import pathlib
from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from endx_jax import json_files, pretrained
from endx_jax.data.token_tables import TokenCache
from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.inference.about import About
from endx_jax.inference.embedding_model import EmbeddingModel, Source
from endx_jax.inference.encode import TextEncoder
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.sharding_hints import platform
from endx_jax.pretrained import PretrainedEncoder
from endx_jax.pretrained.sentence_transformers import Dense, Head, Usage, read_usage
from endx_jax.pretrained.towers import finished_towers

# Tokens of a text that a pretrained encoder without any limit of its own is given at most.
LONGEST = 512


def load_folder(name: str, mesh: Mesh) -> EmbeddingModel:
    """Loads a pretrained folder.

    Args:
      name: as for `pretrained.locate`.
      mesh: over which batches are split.

    Raises:
      EndxError: the folder is missing or incomplete, or has parts that towers do not support.
    """
    folder = pretrained.locate(name)
    return _assemble(name, pretrained.load_sides(str(folder)), read_usage(folder), mesh)


def load_hugging_face(folder: pathlib.Path, about: About, mesh: Mesh, name: str) -> EmbeddingModel:
    """Loads a Hugging Face export of ours: encoders in their folders, with the head described by `endx.json`.

    Args:
      folder: of the export.
      about: its `endx.json`.
      mesh: over which batches are split.
      name: of the model.

    Raises:
      EndxError: a file is missing or can't be read, or the files do not fit together.
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
        sources[side] = PretrainedEncoder(head.encoder, head, json_files.read(head.encoder / "config.json"))
    usage = Usage(about.prompts, default_prompt=about.prompts["query"], cosine=about.cosine)
    return _assemble(name, sources, usage, mesh)


def text_processors(
    sources: Mapping[str, PretrainedEncoder],
    tokenizers: Mapping[str, str | pathlib.Path],
    lengths: Mapping[str, int],
    prompts: Mapping[str, str],
    cache: TokenCache | None = None,
) -> dict[str, TextProcessor]:
    """Returns the text processor of each side; every argument but the last is by side.

    Args:
      sources: the pretrained encoders.
      tokenizers: the folders of their tokenizers.
      lengths: maximum tokens of texts.
      prompts: text before every text.
      cache: of tokens; None: no cache.

    Raises:
      EndxError: a tokenizer is missing, or has ids that the encoder's token table does not have.
    """
    loaded = {folder: Tokenizer(folder) for folder in dict.fromkeys(tokenizers.values())}
    for side, source in sources.items():
        loaded[tokenizers[side]].check_matches(source.config.vocab_size, source.config.pad_id, source.folder)
    return {side: TextProcessor(loaded[tokenizers[side]], lengths[side], prompts[side], cache) for side in SIDES}


def _assemble(name: str, sources: Mapping[str, PretrainedEncoder], usage: Usage, mesh: Mesh) -> EmbeddingModel:
    """Returns the model of the encoders of each side with their heads; equal parts of both sides are shared."""
    dual_encoder, params = finished_towers(sources, platform(mesh))
    folders = {side: source.folder for side, source in sources.items()}
    lengths = {side: _length(source) for side, source in sources.items()}
    processors = text_processors(sources, folders, lengths, {side: usage.prompt(side) for side in SIDES})
    return EmbeddingModel(
        name,
        TextEncoder(dual_encoder, processors, mesh),
        jax.device_put(params),
        cosine=usage.cosine,
        source=Source(sources),
        named_prompts=usage.prompts,
        default_prompt=usage.default_prompt,
        truncate_dim=usage.truncate_dim,
    )


def _length(source: PretrainedEncoder) -> int:
    """Returns the maximum number of tokens of a text that folder and encoder allow."""
    limits = [limit for limit in (source.head.max_length, source.config.positions) if limit]
    return min(limits, default=LONGEST)
