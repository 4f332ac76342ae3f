"""Settings of the towers, and the dual encoder they describe."""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.pooling import POOLINGS
from endx_jax.models.tower import Projection, Tower
from endx_jax.pretrained.checkpoint import PretrainedEncoder
from endx_jax.settings import check, check_choice, key

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Held in `config.model`."""

    pretrained: str = key("all-MiniLM-L6-v2", "a folder with config.json and model.safetensors, a name, or a hub id")
    tokenizer: str = key("", "a folder with another tokenizer than the pretrained model's; empty: its own")
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


def build_dual_encoder(settings: ModelSettings, pretrained: PretrainedEncoder) -> DualEncoder:
    """The dual encoder that (filled in) settings describe, around a pretrained encoder's architecture."""
    config = dataclasses.replace(
        pretrained.config, dropout=settings.dropout, attention_dropout=settings.attention_dropout
    )
    dtype, architecture = _dtype(settings.dtype), pretrained.architecture
    return DualEncoder(
        Tower(
            token_embedder=architecture.embedder(config, dtype),
            encoder=architecture.encoder(config, dtype, remat=settings.remat, scan_layers=settings.scan_layers),
            pooling=settings.pooling,
            projection=Projection(settings.projection) if settings.projection else None,
            normalize=settings.normalize,
        )
    )


def initial_params(
    model: DualEncoder, settings: ModelSettings, pretrained: PretrainedEncoder, draw_key: jax.Array
) -> dict:
    """The dual encoder's parameters before training: the pretrained weights and a newly drawn projection."""
    params = pretrained.params(scan_layers=settings.scan_layers)
    if model.tower.projection is not None:
        pooled = jnp.zeros((1, pretrained.config.width))
        params["projection"] = model.tower.projection.init(draw_key, pooled)["params"]
    return {"shared": params}


def _dtype(name: str):
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return DTYPES[name]
