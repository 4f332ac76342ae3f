"""Loading of Hugging Face and sentence-transformers folders."""

import pathlib
from collections.abc import Mapping

from jax.sharding import Mesh

from endx_jax import json_files, pretrained
from endx_jax.data.tokenization import TextOptions, TextProcessor, Tokenizer
from endx_jax.errors import EndxError
from endx_jax.inference.embedding_model import EmbeddingModel, ModelSource
from endx_jax.inference.encode import TextEncoder
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.sharding_hints import platform
from endx_jax.parallel.sharding import place, state_shardings
from endx_jax.pretrained import PretrainedEncoder
from endx_jax.pretrained.checkpoint import architecture_of
from endx_jax.pretrained.sentence_transformers import Usage, read_usage, scores_pairs
from endx_jax.pretrained.towers import finished_towers

NO_EMBEDDINGS = (
    "{} holds a pair classifier or reranker, which reads question and answer together and has no embeddings: pass it "
    "to --rerank of `endx evaluate` or `endx search`, together with an embedding model; in Python, to "
    "endx_jax.experiment.model.load_pair_scorer"
)
# Maximum lengths in tokens for pretrained encoders that have no limit of their own, and for static token vectors, which
# sentence-transformers does not truncate; the token vectors of longer texts would take gigabytes.
LONGEST, LONGEST_STATIC = 512, 1 << 17


def load_folder(name: str, mesh: Mesh) -> EmbeddingModel:
    """Loads a pretrained folder, by a path or name of `pretrained.locate`.

    Raises:
      EndxError: there is no such folder, it is incomplete, or it has modules that towers do not support.
    """
    folder = pretrained.locate(name)
    if scores_pairs(folder):
        if contents := json_files.read_optional(folder / "config.json"):
            architecture_of(contents, folder)  # raises for a family that is not supported, not even as a reranker
        raise EndxError(NO_EMBEDDINGS.format(folder))
    return _assemble(name, pretrained.load_sides(str(folder)), read_usage(folder), mesh)


def text_processors(
    sources: Mapping[str, PretrainedEncoder],
    tokenizers: Mapping[str, str | pathlib.Path],
    options: Mapping[str, TextOptions],
    *,
    saved: bool = False,
) -> dict[str, TextProcessor]:
    """Returns the text processors of the sides; the keys of all mappings are sides.

    Args:
      sources: pretrained encoders.
      tokenizers: folders of the tokenizers.
      options: prompt, maximum length and other options of the texts.
      saved: the tokenizers are those of a trained model, which end texts with EOS if they did so in training.

    Raises:
      EndxError: a tokenizer is missing, or has ids that the encoder's token table does not have.
    """
    encoders = {tokenizers[side]: source for side, source in sources.items()}
    # Prefixes of late interaction, which are tokens.
    prompts = tuple(dict.fromkeys(options[side].prompt for side in SIDES if options[side].prompt))
    loaded = {
        folder: Tokenizer(
            folder,
            append_eos=source.append_eos and not saved,
            rows=source.config.vocab_size,
            whole=prompts if source.head.tokens else (),
        )
        for folder, source in encoders.items()
    }
    for side, source in sources.items():
        loaded[tokenizers[side]].check_matches(source.config.vocab_size, source.folder)
    return {side: TextProcessor(loaded[tokenizers[side]], **options[side].stated()) for side in SIDES}


def _assemble(name: str, sources: Mapping[str, PretrainedEncoder], usage: Usage, mesh: Mesh) -> EmbeddingModel:
    """Builds the model from the encoders and heads of each side; equal parameters are shared."""
    folders = {side: source.folder for side, source in sources.items()}
    options = {side: TextOptions(_length(source), usage.prompt(side)) for side, source in sources.items()}
    processors = text_processors(sources, folders, options)
    dual_encoder, params = finished_towers(sources, platform(mesh), processors)
    encoder = TextEncoder(dual_encoder, processors, mesh)
    if usage.truncate_dim is not None:
        json_files.as_whole(usage.truncate_dim, f"{name}: 'truncate_dim'", least=1, most=encoder.width(params))
    return EmbeddingModel(
        name,
        encoder,
        place(params, state_shardings(params, mesh)),
        cosine=usage.cosine or (dual_encoder.by_token and dual_encoder.answer.normalize),
        source=ModelSource(sources),
        named_prompts=usage.prompts,
        default_prompt=usage.default_prompt,
        truncate_dim=usage.truncate_dim,
    )


def _length(source: PretrainedEncoder) -> int:
    """Returns the maximum length in tokens that the folder and the encoder allow."""
    limits = [limit for limit in (source.head.max_length, source.config.positions) if limit]
    return min(limits, default=LONGEST if source.config.layers else LONGEST_STATIC)
