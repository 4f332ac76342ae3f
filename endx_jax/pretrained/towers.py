"""Settings of the towers, and the dual encoder they describe."""

import dataclasses
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.models.bert import BertConfig, BertEncoder
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.layout import Padded
from endx_jax.models.pooling import POOLINGS, REDUCTIONS, MultiHopAttention
from endx_jax.models.recurrent import CELLS, RecurrentConfig, RecurrentEncoder
from endx_jax.models.residual import FUNCTIONS, HeadConfig, ResidualHeads
from endx_jax.models.sharing import ALL_SHARINGS
from endx_jax.models.static import NoEncoder, StaticConfig, TokenWeights
from endx_jax.models.tower import Projection, TokenEmbedder, Tower
from endx_jax.pretrained.architectures import EncoderConfig
from endx_jax.pretrained.checkpoint import PretrainedEncoder
from endx_jax.settings import check, check_choice, key

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
NEW_ENCODERS = (*CELLS, "transformer")
NO_ENCODER = "none"
MULTI_HOP = "multi_hop"
IDF = "idf"
HEAD_SIDES = ("both", *SIDES)

# Of a new transformer on token embeddings whose own encoder has no limit.
POSITIONS = 512


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Held in `config.model`."""

    pretrained: str = key(
        "all-MiniLM-L6-v2",
        "a folder with config.json and model.safetensors, a file of word vectors, a name, or a hub id",
    )
    answer_pretrained: str = key("", "another such encoder for the answer tower; empty: the same")
    tokenizer: str = key("", "a folder with another tokenizer than the pretrained model's; empty: its own")
    sharing: str = key(
        "sde", f"of parameters between the towers (Dong et al. 2022; residual: RR): one of {', '.join(ALL_SHARINGS)}"
    )
    question_prompt: str = key("", "stands before every question, in training and ever after")
    answer_prompt: str = key("", "stands before every answer, in training and ever after")
    init_from: str = key(
        "", "workdir of a finished run whose best parameters to start from; empty: the pretrained ones"
    )
    encoder: str = key(
        "",
        f"newly drawn on the pretrained token embeddings: {', '.join(NEW_ENCODERS)}; {NO_ENCODER}: these embeddings as "
        "they are; empty: their own encoder",
    )
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
    layer_weights: tuple[float, ...] = key(
        (),
        "of a mixture of the pretrained model's layers, in place of its last: of its token table, for BERT of what the "
        "first layer receives, and of each layer; they sum to one (RR); `endx layers` finds them",
    )
    token_weights: str = key(
        "",
        f"by which tokens count when they are pooled: {IDF}, ln(documents / documents with the token) over the "
        "training set's questions and answers (RR); empty: all alike",
    )
    head: str = key(
        "",
        f"heads that are added to what the tower makes of a text, in order, joined by + (RR): {', '.join(FUNCTIONS)}; "
        "empty: none. With sharing=residual they are all that is trained",
    )
    head_sides: str = key("both", f"which towers have one: {', '.join(HEAD_SIDES)}; the other stays as it is")
    head_width: int = key(1024, "of fcrr's hidden layer (RR: unstated)")
    head_filters: int = key(16, "of convrr, 5 dimensions wide and 2 apart (RR: 1024)")
    head_scale: float = key(1.0, "of what a head adds (RR: 1)")
    head_dropout: float = key(0.1, "of a head's hidden activations in training, in [0, 1) (RR: 0.1)")
    normalize: bool = key(True, "unit L2 norm, so that similarities are cosines; false: plain inner products")
    dropout: float = key(-1.0, "of embeddings and sublayers in training, in [0, 1); -1: what config.json says")
    attention_dropout: float = key(-1.0, "of attention weights in training, in [0, 1); -1: what config.json says")
    dtype: str = key("auto", "of the computation: float32, bfloat16, or auto: float32 on CPU, bfloat16 elsewhere")
    remat: bool = key(False, "recompute each layer's activations in the backward pass", changes_results=False)
    scan_layers: bool = key(False, "hold layers stacked and run them as one scan: compiles faster when they are many")

    def __post_init__(self):
        check_choice("model.sharing", self.sharing, ALL_SHARINGS)
        check_choice("model.dtype", self.dtype, ("auto", *DTYPES))
        check_choice("model.encoder", self.encoder, ("", NO_ENCODER, *NEW_ENCODERS))
        check_choice("model.token_weights", self.token_weights, ("", IDF))
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
        self._check_heads()
        if self.layer_weights:
            total = sum(self.layer_weights)
            # RR's own mixture of three layers, 0.33 each, sums to 0.99.
            check(abs(total - 1) < 0.011, f"model.layer_weights sum to {total:g}; they must sum to one")
            check(not self.encoder, f"model.layer_weights mix pretrained layers, which encoder={self.encoder} has not")
            check(not self.scan_layers, "model.layer_weights need each layer by itself; leave model.scan_layers off")

    @property
    def heads(self) -> tuple[str, ...]:
        """The heads' names, in order."""
        return tuple(self.head.split("+")) if self.head else ()

    def _check_heads(self) -> None:
        check_choice("model.head_sides", self.head_sides, HEAD_SIDES)
        for name in self.heads:
            check_choice("model.head", name, FUNCTIONS)
        check(len(set(self.heads)) == len(self.heads), f"model.head is {self.head}: a head can be there once")
        for name in ("head_width", "head_filters"):
            check(getattr(self, name) >= 1, f"model.{name} is {getattr(self, name)}; it must be positive")
        check(0 <= self.head_dropout < 1, f"model.head_dropout is {self.head_dropout}; it must be in [0, 1)")
        check(self.normalize or not self.head, "heads make unit vectors: with model.head leave model.normalize on")
        sharing = ALL_SHARINGS[self.sharing]
        check(
            bool(self.head) or not sharing.trains_heads_alone,
            f"model.sharing={self.sharing} trains heads, and there are none: set model.head, such as to fcrr",
        )
        check(
            self.head_sides == "both" or not self.head or "head" not in sharing.shared,
            f"model.head_sides={self.head_sides} is for towers with a head each: set model.sharing to residual",
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
    other = settings.encoder or settings.layer_weights or settings.pooling not in ("", head.pooling)
    if head.projection is None or other:
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
    towers = {side: build_tower(settings, sources[side]) for side in SIDES}
    if settings.head:
        towers = {side: _with_heads(tower, settings, side, widths[side]) for side, tower in towers.items()}
    return DualEncoder(**towers, sharing=ALL_SHARINGS[settings.sharing])


def _with_heads(tower: Tower, settings: ModelSettings, side: str, width: int) -> Tower:
    """The tower with its heads, where its side has any."""
    if settings.head_sides not in ("both", side):
        return tower
    check(
        "convrr" not in settings.heads or width >= HeadConfig.window,
        f"model.head={settings.head} looks at {HeadConfig.window} dimensions at a time, and embeddings have {width}",
    )
    shape = {"width": settings.head_width, "filters": settings.head_filters}
    config = HeadConfig(settings.heads, **shape, scale=settings.head_scale, dropout=settings.head_dropout)
    return tower.clone(head=ResidualHeads(config))


def build_tower(settings: ModelSettings, source: PretrainedEncoder) -> Tower:
    """One tower around a pretrained encoder's architecture, or around its token table alone.

    Raises:
      EndxError: when there are not as many layer weights as layers.
    """
    dtype, tokens = _dtype(settings.dtype), source.config
    pooling = POOLINGS.get(settings.pooling)
    encoder = _encoder(settings, source, dtype)
    if settings.layer_weights:
        layers = ("token table", *encoder.outputs)
        check(
            len(settings.layer_weights) == len(layers),
            f"model.layer_weights has {len(settings.layer_weights)} weights for the {len(layers)} layers of "
            f"{source.folder}: {', '.join(layers)}",
        )
    return Tower(
        token_embedder=TokenEmbedder(tokens.vocab_size, tokens.width, dtype, tokens.initializer_range),
        encoder=encoder,
        pooling=pooling or MultiHopAttention(settings.hops, settings.attention_width, settings.hop_reduction),
        projection=Projection(settings.projection) if settings.projection else None,
        normalize=settings.normalize,
        token_weights=TokenWeights(tokens.vocab_size) if settings.token_weights else None,
        layer_weights=settings.layer_weights or None,
    )


def encoder_config(settings: ModelSettings, source: PretrainedEncoder) -> EncoderConfig | RecurrentConfig:
    """The shape of a tower's encoder: the pretrained one's, or a new one's on its token embeddings.

    Raises:
      EndxError: when a new transformer is to have another width than the token embeddings, or heads that do not fit.
    """
    tokens = source.config
    if not settings.encoder:
        return dataclasses.replace(tokens, dropout=settings.dropout, attention_dropout=settings.attention_dropout)
    if settings.encoder == NO_ENCODER:
        return StaticConfig(tokens.vocab_size, tokens.width, tokens.pad_id)
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
    model: DualEncoder,
    settings: ModelSettings,
    sources: Mapping[str, PretrainedEncoder],
    draw_key: jax.Array,
    token_weights: Mapping[str, np.ndarray] | None = None,
) -> dict:
    """The dual encoder's parameters before training: pretrained weights, and newly drawn ones, other for each side.

    Args:
      model: both towers.
      settings: that they were built from.
      sources: the pretrained encoders of both sides.
      draw_key: for what no checkpoint holds.
      token_weights: by side, float32 [V], where the settings ask for some.
    """
    question = sources["question"].params(scan_layers=settings.scan_layers)
    same = sources["answer"].folder == sources["question"].folder
    answer = question if same else sources["answer"].params(scan_layers=settings.scan_layers)
    towers = {}
    for side, read, draw in zip(SIDES, (question, answer), jax.random.split(draw_key), strict=True):
        tower = model.tower(side)
        kept = {group: p for group, p in read.items() if group != "projection" or tower.projection is not None}
        towers[side] = kept | _new_params(tower, settings, sources[side], draw)
        if token_weights is not None:
            towers[side]["token_weights"] = {"weight": token_weights[side]}
    return model.join(towers)


def _new_params(tower: Tower, settings: ModelSettings, source: PretrainedEncoder, draw_key: jax.Array) -> dict:
    """The groups of one tower's parameters that no checkpoint holds."""
    mask, encodings = jnp.ones((1, 1), bool), jnp.zeros((1, 1, encoder_config(settings, source).width))
    drawn = {}
    if tower.projection is not None and settings.projection != _own_projection(settings, source):
        drawn["projection"] = _draw(tower.projection, draw_key, jnp.zeros((1, _pooled_width(settings, source))))
    if isinstance(tower.pooling, nn.Module):
        drawn["pooling"] = _draw(tower.pooling, jax.random.fold_in(draw_key, 1), encodings, mask)
    if settings.encoder in NEW_ENCODERS:
        embedded = jnp.zeros((1, 1, source.config.width))
        drawn["encoder"] = _draw(tower.encoder, jax.random.fold_in(draw_key, 2), embedded, Padded(mask))
    if tower.head is not None:
        width = settings.projection or _pooled_width(settings, source)
        drawn["head"] = _draw(tower.head, jax.random.fold_in(draw_key, 3), jnp.zeros((1, width)))
    return drawn


def _draw(part: nn.Module, draw_key: jax.Array, *inputs) -> dict:
    return jax.jit(lambda key: part.init(key, *inputs)["params"])(draw_key)


def _encoder(settings: ModelSettings, source: PretrainedEncoder, dtype) -> nn.Module:
    config = encoder_config(settings, source)
    if isinstance(config, StaticConfig):
        return NoEncoder()
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
