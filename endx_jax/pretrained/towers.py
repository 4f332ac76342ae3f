"""Settings of the towers, and the dual encoder they describe."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.pooling import POOLINGS
from endx_jax.models.sharing import SHARINGS
from endx_jax.models.tower import Projection, Tower
from endx_jax.pretrained.checkpoint import PretrainedEncoder
from endx_jax.settings import check, check_choice, key

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Held in `config.model`."""

    pretrained: str = key("all-MiniLM-L6-v2", "a folder with config.json and model.safetensors, a name, or a hub id")
    answer_pretrained: str = key("", "another such encoder for the answer tower; empty: the same")
    tokenizer: str = key("", "a folder with another tokenizer than the pretrained model's; empty: its own")
    sharing: str = key("sde", f"of parameters between the towers (Dong et al. 2022): one of {', '.join(SHARINGS)}")
    question_prompt: str = key("", "stands before every question, in training and ever after")
    answer_prompt: str = key("", "stands before every answer, in training and ever after")
    init_from: str = key(
        "", "workdir of a finished run whose best parameters to start from; empty: the pretrained ones"
    )
    pooling: str = key("", f"one of {', '.join(POOLINGS)}; empty: what the pretrained folder says, else mean")
    projection: int = key(0, "width E of a linear map after pooling, newly drawn; 0: none")
    normalize: bool = key(True, "unit L2 norm, so that similarities are cosines; false: plain inner products")
    dropout: float = key(-1.0, "of embeddings and sublayers in training, in [0, 1); -1: what config.json says")
    attention_dropout: float = key(-1.0, "of attention weights in training, in [0, 1); -1: what config.json says")
    dtype: str = key("auto", "of the computation: float32, bfloat16, or auto: float32 on CPU, bfloat16 elsewhere")
    remat: bool = key(False, "recompute each layer's activations in the backward pass", changes_results=False)
    scan_layers: bool = key(False, "hold layers stacked and run them as one scan: compiles faster when they are many")

    def __post_init__(self):
        check_choice("model.sharing", self.sharing, SHARINGS)
        check_choice("model.dtype", self.dtype, ("auto", *DTYPES))
        check_choice("model.pooling", self.pooling, ("", *POOLINGS))
        check(self.projection >= 0, f"model.projection is {self.projection}; it must not be negative")
        for name in ("dropout", "attention_dropout"):
            rate = getattr(self, name)
            check(rate == -1 or 0 <= rate < 1, f"model.{name} is {rate}; it must be in [0, 1), or -1")


def fill_in(settings: ModelSettings, pretrained: PretrainedEncoder) -> ModelSettings:
    """Replaces the settings that are left to the pretrained folder by what it says."""
    config, head = pretrained.config, pretrained.head
    return dataclasses.replace(
        settings,
        pooling=settings.pooling or head.pooling,
        dropout=config.dropout if settings.dropout < 0 else settings.dropout,
        attention_dropout=config.attention_dropout if settings.attention_dropout < 0 else settings.attention_dropout,
    )


def build_dual_encoder(settings: ModelSettings, sources: Mapping[str, PretrainedEncoder]) -> DualEncoder:
    """The dual encoder that (filled in) settings describe, around the pretrained encoders of both sides.

    Raises:
      EndxError: when the towers' embeddings would differ in width.
    """
    widths = {side: settings.projection or sources[side].config.width for side in SIDES}
    check(
        len(set(widths.values())) == 1,
        f"the towers' embeddings are {widths['question']} and {widths['answer']} wide; set model.projection",
    )
    return DualEncoder(
        **{side: build_tower(settings, sources[side]) for side in SIDES}, sharing=SHARINGS[settings.sharing]
    )


def build_tower(settings: ModelSettings, source: PretrainedEncoder) -> Tower:
    """One tower around a pretrained encoder's architecture."""
    config = dataclasses.replace(source.config, dropout=settings.dropout, attention_dropout=settings.attention_dropout)
    dtype, architecture = _dtype(settings.dtype), source.architecture
    return Tower(
        token_embedder=architecture.embedder(config, dtype),
        encoder=architecture.encoder(config, dtype, remat=settings.remat, scan_layers=settings.scan_layers),
        pooling=settings.pooling,
        projection=Projection(settings.projection) if settings.projection else None,
        normalize=settings.normalize,
    )


def initial_params(
    model: DualEncoder, settings: ModelSettings, sources: Mapping[str, PretrainedEncoder], draw_key: jax.Array
) -> dict:
    """The dual encoder's parameters before training: pretrained weights, and projections that are newly drawn."""
    question = sources["question"].params(scan_layers=settings.scan_layers)
    same = sources["answer"].folder == sources["question"].folder
    answer = question if same else sources["answer"].params(scan_layers=settings.scan_layers)
    towers = {"question": dict(question), "answer": dict(answer)}
    for side, draw in zip(SIDES, jax.random.split(draw_key), strict=True):
        projection = model.tower(side).projection
        if projection is not None:
            pooled = jnp.zeros((1, sources[side].config.width))
            towers[side]["projection"] = projection.init(draw, pooled)["params"]
    return model.join(towers)


def _dtype(name: str):
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return DTYPES[name]
