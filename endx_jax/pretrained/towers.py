"""Settings of the towers, and the dual encoder they describe."""

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.bert import BertConfig, BertEncoder
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.layout import Padded
from endx_jax.models.pooling import POOLINGS, REDUCTIONS, MultiHopAttention
from endx_jax.models.recurrent import CELLS, RecurrentConfig, RecurrentEncoder
from endx_jax.models.sharing import SHARINGS
from endx_jax.models.tower import Projection, TokenEmbedder, Tower
from endx_jax.pretrained.architectures import EncoderConfig
from endx_jax.pretrained.checkpoint import PretrainedEncoder
from endx_jax.settings import check, check_choice, key

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
NEW_ENCODERS = (*CELLS, "transformer")
MULTI_HOP = "multi_hop"

# Of a new transformer on token embeddings whose own encoder has no limit.
POSITIONS = 512


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
    encoder: str = key("", f"newly drawn on the pretrained token embeddings: {', '.join(NEW_ENCODERS)}; empty: theirs")
    encoder_layers: int = key(2, "of a new encoder (ENDX: 2)")
    encoder_width: int = key(0, "of a new recurrent encoder's output; 0: the token embeddings' width")
    encoder_heads: int = key(12, "of a new transformer (ENDX: 12 of 64 each)")
    bidirectional: bool = key(True, "whether a new recurrent encoder reads both ways, half its width each (ENDX: open)")
    pooling: str = key(
        "",
        f"one of {', '.join((*POOLINGS, MULTI_HOP))}; empty: what a pretrained encoder's folder says, else mean",
    )
    hops: int = key(10, "of multi_hop pooling, r (Lin et al. 2017: 30; ENDX: unstated)")
    attention_width: int = key(256, "of multi_hop pooling's hidden layer, d_a (Lin et al. 2017: 350; ENDX: unstated)")
    hop_reduction: str = key("mean", f"what becomes of the hops: {', '.join(REDUCTIONS)} (Lin et al. 2017: flatten)")
    projection: int = key(
        0,
        "width E of a linear map after pooling, newly drawn unless the pretrained folder has one of this width; 0: the "
        "folder's, or none",
    )
    normalize: bool = key(True, "unit L2 norm, so that similarities are cosines; false: plain inner products")
    dropout: float = key(-1.0, "of embeddings and sublayers in training, in [0, 1); -1: what config.json says")
    attention_dropout: float = key(-1.0, "of attention weights in training, in [0, 1); -1: what config.json says")
    dtype: str = key("auto", "of the computation: float32, bfloat16, or auto: float32 on CPU, bfloat16 elsewhere")
    remat: bool = key(False, "recompute each layer's activations in the backward pass", changes_results=False)
    scan_layers: bool = key(False, "hold layers stacked and run them as one scan: compiles faster when they are many")

    def __post_init__(self):
        check_choice("model.sharing", self.sharing, SHARINGS)
        check_choice("model.dtype", self.dtype, ("auto", *DTYPES))
        check_choice("model.encoder", self.encoder, ("", *NEW_ENCODERS))
        check_choice("model.pooling", self.pooling, ("", *POOLINGS, MULTI_HOP))
        check_choice("model.hop_reduction", self.hop_reduction, REDUCTIONS)
        for name in ("projection", "encoder_width"):
            check(getattr(self, name) >= 0, f"model.{name} is {getattr(self, name)}; it must not be negative")
        for name in ("encoder_layers", "encoder_heads", "hops", "attention_width"):
            check(getattr(self, name) >= 1, f"model.{name} is {getattr(self, name)}; it must be positive")
        for name in ("dropout", "attention_dropout"):
            rate = getattr(self, name)
            check(rate == -1 or 0 <= rate < 1, f"model.{name} is {rate}; it must be in [0, 1), or -1")
        check(
            not (self.scan_layers and self.encoder in CELLS),
            f"model.scan_layers is for transformers; leave it off with model.encoder={self.encoder}",
        )


def fill_in(settings: ModelSettings, pretrained: PretrainedEncoder) -> ModelSettings:
    """Replaces the settings that are left to the pretrained folder by what it says."""
    config = pretrained.config
    return dataclasses.replace(
        settings,
        pooling=settings.pooling or ("mean" if settings.encoder else pretrained.head.pooling),
        projection=settings.projection or _own_projection(settings, pretrained),
        dropout=config.dropout if settings.dropout < 0 else settings.dropout,
        attention_dropout=config.attention_dropout if settings.attention_dropout < 0 else settings.attention_dropout,
    )


def _own_projection(settings: ModelSettings, pretrained: PretrainedEncoder) -> int:
    """The width of the projection that a pretrained folder has, for its own encodings pooled its way; 0: none."""
    head = pretrained.head
    if head.projection is None or settings.encoder or settings.pooling not in ("", head.pooling):
        return 0
    return head.projection.width


def build_dual_encoder(settings: ModelSettings, sources: Mapping[str, PretrainedEncoder]) -> DualEncoder:
    """The dual encoder that (filled in) settings describe, around the pretrained encoders of both sides.

    Raises:
      EndxError: when the towers' embeddings would differ in width, or a new encoder does not fit a token table.
    """
    widths = {side: settings.projection or _pooled_width(settings, sources[side]) for side in SIDES}
    check(
        len(set(widths.values())) == 1,
        f"the towers' embeddings are {widths['question']} and {widths['answer']} wide; set model.projection",
    )
    return DualEncoder(
        **{side: build_tower(settings, sources[side]) for side in SIDES}, sharing=SHARINGS[settings.sharing]
    )


def build_tower(settings: ModelSettings, source: PretrainedEncoder) -> Tower:
    """One tower around a pretrained encoder's architecture, or around its token table alone."""
    dtype, tokens = _dtype(settings.dtype), source.config
    pooling = POOLINGS.get(settings.pooling)
    return Tower(
        token_embedder=TokenEmbedder(tokens.vocab_size, tokens.width, dtype, tokens.initializer_range),
        encoder=_encoder(settings, source, dtype),
        pooling=pooling or MultiHopAttention(settings.hops, settings.attention_width, settings.hop_reduction),
        projection=Projection(settings.projection) if settings.projection else None,
        normalize=settings.normalize,
    )


def encoder_config(settings: ModelSettings, source: PretrainedEncoder) -> EncoderConfig | RecurrentConfig:
    """The shape of a tower's encoder: the pretrained one's, or a new one's on its token embeddings.

    Raises:
      EndxError: when a new transformer is to have another width than the token embeddings, or heads that do not fit.
    """
    tokens = source.config
    if not settings.encoder:
        return dataclasses.replace(tokens, dropout=settings.dropout, attention_dropout=settings.attention_dropout)
    if settings.encoder in CELLS:
        width = settings.encoder_width or tokens.width
        return RecurrentConfig(
            settings.encoder, settings.encoder_layers, width, settings.bidirectional, settings.dropout
        )
    check(
        settings.encoder_width in (0, tokens.width),
        f"model.encoder_width is {settings.encoder_width}; a transformer has the width of the token embeddings of "
        f"{source.folder}, {tokens.width}: set it to 0",
    )
    check(
        tokens.width % settings.encoder_heads == 0,
        f"model.encoder_heads is {settings.encoder_heads}, which does not divide the width {tokens.width} of the token "
        f"embeddings of {source.folder}",
    )
    return BertConfig(
        vocab_size=tokens.vocab_size,
        width=tokens.width,
        layers=settings.encoder_layers,
        heads=settings.encoder_heads,
        mlp_width=4 * tokens.width,
        positions=tokens.positions or POSITIONS,
        token_types=1,
        dropout=settings.dropout,
        attention_dropout=settings.attention_dropout,
        pad_id=tokens.pad_id,
    )


def initial_params(
    model: DualEncoder, settings: ModelSettings, sources: Mapping[str, PretrainedEncoder], draw_key: jax.Array
) -> dict:
    """The dual encoder's parameters before training: pretrained weights, and newly drawn ones, other for each side."""
    question = sources["question"].params(scan_layers=settings.scan_layers)
    same = sources["answer"].folder == sources["question"].folder
    answer = question if same else sources["answer"].params(scan_layers=settings.scan_layers)
    towers = {}
    for side, read, draw in zip(SIDES, (question, answer), jax.random.split(draw_key), strict=True):
        tower = model.tower(side)
        kept = {group: p for group, p in read.items() if group != "projection" or tower.projection is not None}
        towers[side] = kept | _new_params(tower, settings, sources[side], draw)
    return model.join(towers)


def _new_params(tower: Tower, settings: ModelSettings, source: PretrainedEncoder, draw_key: jax.Array) -> dict:
    """The groups of one tower's parameters that no checkpoint holds."""
    mask, encodings = jnp.ones((1, 1), bool), jnp.zeros((1, 1, encoder_config(settings, source).width))
    drawn = {}
    if tower.projection is not None and settings.projection != _own_projection(settings, source):
        drawn["projection"] = _draw(tower.projection, draw_key, jnp.zeros((1, _pooled_width(settings, source))))
    if isinstance(tower.pooling, nn.Module):
        drawn["pooling"] = _draw(tower.pooling, jax.random.fold_in(draw_key, 1), encodings, mask)
    if settings.encoder:
        embedded = jnp.zeros((1, 1, source.config.width))
        drawn["encoder"] = _draw(tower.encoder, jax.random.fold_in(draw_key, 2), embedded, Padded(mask))
    return drawn


def _draw(part: nn.Module, draw_key: jax.Array, *inputs) -> dict:
    return jax.jit(lambda key: part.init(key, *inputs)["params"])(draw_key)


def _encoder(settings: ModelSettings, source: PretrainedEncoder, dtype) -> nn.Module:
    config = encoder_config(settings, source)
    if isinstance(config, RecurrentConfig):
        return RecurrentEncoder(config, dtype, remat=settings.remat)
    make: Callable[..., nn.Module] = BertEncoder if settings.encoder else source.architecture.encoder
    return make(config, dtype, remat=settings.remat, scan_layers=settings.scan_layers)


def _pooled_width(settings: ModelSettings, source: PretrainedEncoder) -> int:
    """P, the width of what pooling makes of a text."""
    flatten = settings.pooling == MULTI_HOP and settings.hop_reduction == "flatten"
    return encoder_config(settings, source).width * (settings.hops if flatten else 1)


def _dtype(name: str):
    if name == "auto":
        name = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    return DTYPES[name]
