"""The model of a pretrained folder: a Hugging Face one of one encoder, or a sentence-transformers one."""

from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from endx_jax import pretrained
from endx_jax.data.tokenization import Preparation, Tokenizer
from endx_jax.loading.embedding_model import EmbeddingModel, Source
from endx_jax.pretrained.finished import finished_towers
from endx_jax.pretrained.sentence_transformers import Usage, read_usage
from endx_jax.retrieval.encode import TextEncoder

# Tokens of a text that a pretrained encoder without any limit of its own is given at most.
LONGEST = 512


def load_folder(name: str, mesh: Mesh) -> EmbeddingModel:
    """Loads a pretrained folder.

    Args:
      name: as for `pretrained.locate`.
      mesh: over which batches are split.

    Raises:
      EndxError: when there is no such folder, or it is not whole, or holds what our towers have not.
    """
    folder = pretrained.locate(name)
    return assemble(name, pretrained.load_sides(str(folder)), read_usage(folder), mesh)


def assemble(
    name: str, sources: Mapping[str, pretrained.PretrainedEncoder], usage: Usage, mesh: Mesh
) -> EmbeddingModel:
    """The model of what pretrained folders say.

    Args:
      name: what the model is called.
      sources: the encoder of each side, with its head. What is equal on both sides is shared.
      usage: prompts, and how embeddings are compared.
      mesh: over which batches are split.

    Raises:
      EndxError: when weights or a tokenizer are missing or do not fit.
    """
    dual_encoder, params = finished_towers(sources)
    tokenizers = {folder: Tokenizer(folder) for folder in {source.folder for source in sources.values()}}
    preparations = {}
    for side, source in sources.items():
        tokenizer, config = tokenizers[source.folder], source.config
        tokenizer.check_matches(config.vocab_size, config.pad_id, source.folder)
        preparations[side] = Preparation(tokenizer, _length(source), usage.prompt(side))
    return EmbeddingModel(
        name,
        TextEncoder(dual_encoder, preparations, mesh),
        jax.device_put(params),
        cosine=usage.cosine,
        source=Source(sources),
        named_prompts=usage.prompts,
        default_prompt=usage.default_prompt,
        truncate_dim=usage.truncate_dim,
    )


def _length(source: pretrained.PretrainedEncoder) -> int:
    """Tokens of a text at most: what folder and encoder allow."""
    limits = [limit for limit in (source.head.max_length, source.config.positions) if limit]
    return min(limits, default=LONGEST)
