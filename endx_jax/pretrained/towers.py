"""Construction of a dual encoder from settings and pretrained encoders, and of its initial parameters."""

import dataclasses
import warnings
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.data.tokenization import TextProcessor, Tokenizer
from endx_jax.encoders import EncoderConfig
from endx_jax.encoders.bert import BertConfig
from endx_jax.errors import EndxError
from endx_jax.models.dual_encoder import SIDES, DualEncoder
from endx_jax.models.heads import MakeHead
from endx_jax.models.layout import Padded
from endx_jax.models.pooling import POOLINGS, MultiHopAttention
from endx_jax.models.products import product_dtype_on
from endx_jax.models.recurrent import CELLS, RecurrentConfig, RecurrentEncoder
from endx_jax.models.sharing import SHARINGS, Sharing
from endx_jax.models.static import NoEncoder, StaticConfig, TokenWeights
from endx_jax.models.token_embeddings import TOKENS, TokenChoice, TokenSettings
from endx_jax.models.tower import Projection, TokenEmbedder, Tower
from endx_jax.models.transformer import TransformerEncoder
from endx_jax.models.transformer_config import TransformerConfig
from endx_jax.pretrained.checkpoint import PretrainedEncoder
from endx_jax.pretrained.sentence_transformers import Dense
from endx_jax.pretrained.settings import NEW_ENCODERS, NO_ENCODER, ModelSettings
from endx_jax.settings import require

# Positions of a new transformer if the pretrained config has no limit.
POSITIONS = 512


# Settings of both towers that `fill_in` takes from a folder, with what to set where the folders of the sides differ.
COMMON = {
    "pooling": "model.pooling",
    "tokens": "one of model.tokens to another value than its default",
    "projection": "model.projection",
    "projection_bias": "model.projection_bias, or model.projection to another width",
    "projection_function": "model.projection_function, or model.projection to another width",
}


def fill_in_both(settings: ModelSettings, sources: Mapping[str, PretrainedEncoder]) -> ModelSettings:
    """Returns the result of `fill_in` for the encoders of both sides.

    Raises:
      EndxError: the folders differ in a setting of `COMMON` that is left to them, the towers share parameters that
        both folders have, or adapters are described but have no rank.
    """
    lora = settings.lora
    require(
        lora.rank > 0 or not (lora.adapter or lora.targets),
        "model.lora.adapter and model.lora.targets need model.lora.rank: set it above 0, to the r of an adapter",
    )
    question, answer = (fill_in(settings, sources[side]) for side in SIDES)
    given = {"token_embedder", "encoder"} | ({"projection"} if keeps_projection(answer, sources["answer"]) else set())
    lost = sorted(given & SHARINGS[settings.sharing].shared)
    require(
        not lost or sources["question"].folder == sources["answer"].folder,
        f"model.sharing={settings.sharing} shares {' and '.join(lost)}, so that those of model.answer_pretrained would "
        "not be used: choose a model.sharing that does not, such as ade",
    )
    for name, remedy in COMMON.items():
        values = [getattr(filled, name) for filled in (question, answer)]
        if values[0] != values[1]:
            stated = (f"{value} by {sources[side].folder}" for side, value in zip(SIDES, values, strict=True))
            raise EndxError(f"model.{name} is {' and '.join(stated)}, and both towers have the same: set {remedy}")
    return question


def fill_in(settings: ModelSettings, pretrained: PretrainedEncoder) -> ModelSettings:
    """Returns the settings with those left to the pretrained folder replaced by its values."""
    config, projection = pretrained.config, _own_projection(settings, pretrained)
    if not (pretrained.head.pooling or settings.pooling or settings.encoder):
        assumed = (
            "a language model that states no pooling (it has no modules.json): a text's embedding is the encoding of "
            "its last token, EOS, by causal attention; other poolings by model.pooling, attention to all tokens by "
            '"is_causal": false in config.json'
            if pretrained.append_eos
            else "an encoder that states no pooling (it has no modules.json): a text's embedding is the mean of its "
            "tokens' encodings; training takes others by model.pooling, such as first for [CLS]"
        )
        warnings.warn(f"{pretrained.folder} is {assumed}", stacklevel=2)
    if projection is not None and settings.projection in (0, projection.width):
        settings = dataclasses.replace(
            settings,
            projection=projection.width,
            projection_bias=projection.has_bias,
            projection_function=projection.function,
        )
    own, late = pretrained.head.tokens, settings.pooling in ("", TOKENS) and not settings.encoder
    if own and late and settings.tokens == TokenSettings():
        settings = dataclasses.replace(settings, tokens=own)
    return dataclasses.replace(
        settings,
        pooling=settings.pooling or ("mean" if settings.encoder else pretrained.pooling),
        dropout=config.dropout if settings.dropout < 0 else settings.dropout,
        attention_dropout=config.attention_dropout if settings.attention_dropout < 0 else settings.attention_dropout,
    )


def _own_projection(settings: ModelSettings, pretrained: PretrainedEncoder) -> Dense | None:
    """Returns the pretrained projection; None if there is none or encodings or pooling differ."""
    other = settings.encoder or settings.layer_weights or settings.pooling not in ("", pretrained.pooling)
    return None if other else pretrained.head.projection


def keeps_projection(settings: ModelSettings, pretrained: PretrainedEncoder) -> bool:
    """Returns true if a tower with the result of `fill_in` has the projection of the pretrained folder."""
    projection = _own_projection(settings, pretrained)
    return projection is not None and projection.width == settings.projection


def build_dual_encoder(
    settings: ModelSettings | Mapping[str, ModelSettings],
    sources: Mapping[str, PretrainedEncoder],
    platform: str | None = None,
    make_head: MakeHead | None = None,
    processors: Mapping[str, TextProcessor] | None = None,
    sharing: Sharing | None = None,
) -> DualEncoder:
    """Returns the dual encoder for settings and pretrained encoders.

    Args:
      settings: result of `fill_in`, for both sides or by side.
      sources: pretrained encoders by side.
      platform: platform of the devices that run it, for `model.dtype=auto`; None means the process's default backend.
      make_head: makes what a method adds to the towers; None: nothing.
      processors: text processors by side, for the ids of `model.tokens`; None: only shapes matter.
      sharing: what the towers share; None for `model.sharing`.

    Raises:
      EndxError: the towers' embeddings would differ in width, a new encoder does not fit a token table, or a tokenizer
        lacks a token of `model.tokens`.
    """
    by_side = settings if isinstance(settings, Mapping) else dict.fromkeys(SIDES, settings)
    widths = {side: embedding_width(by_side[side], sources[side]) for side in SIDES}
    if len(set(widths.values())) > 1:
        wide = (f"{width} dimensions by {sources[side].folder}" for side, width in widths.items())
        raise EndxError(
            f"question and answer embeddings have {' and '.join(wide)}: set model.projection, or use encoders of equal "
            "width"
        )
    towers = {side: build_tower(by_side[side], sources[side], platform) for side in SIDES}
    for side, tower in towers.items():
        if by_side[side].pooling == TOKENS:
            tokenizer = processors[side].tokenizer if processors else None
            tower = tower.clone(tokens=token_choice(by_side[side].tokens, side, tokenizer))
        towers[side] = tower.clone(head=make_head(side, widths[side])) if make_head else tower
    return DualEncoder(**towers, sharing=sharing or SHARINGS[by_side["question"].sharing])


def token_choice(settings: TokenSettings, side: str, tokenizer: Tokenizer | None) -> TokenChoice:
    """Returns the tokens of a side's texts that have an embedding; without a tokenizer, ids are 0."""
    if side == "question":
        fill = tokenizer.mask_id if tokenizer and settings.expand else 0
        return TokenChoice(expand=settings.expand, fill=fill, attend=settings.attend and settings.expand > 0)
    return TokenChoice(tokenizer.ids_of(settings.skip, "model.tokens.skip") if tokenizer else (0,) * len(settings.skip))


def build_tower(settings: ModelSettings, source: PretrainedEncoder, platform: str | None = None) -> Tower:
    """Returns a tower with a pretrained encoder's architecture, or with a new encoder on its token table.

    Args:
      settings: result of `fill_in`.
      source: pretrained encoder.
      platform: as in `build_dual_encoder`.
    """
    dtype, tokens = compute_dtype(settings.dtype, platform), source.config
    pooling = POOLINGS.get(settings.pooling)
    encoder = _encoder(settings, source, dtype, platform)
    if settings.layer_weights:
        layers = ("token table", *encoder.outputs)
        require(
            len(settings.layer_weights) == len(layers),
            f"model.layer_weights has {len(settings.layer_weights)} weights for the {len(layers)} layers of "
            f"{source.folder}: {', '.join(layers)}",
        )
    projection = Projection(settings.projection, settings.projection_bias, settings.projection_function)
    return Tower(
        token_embedder=TokenEmbedder(tokens.vocab_size, tokens.table_width, dtype, tokens.initializer_range),
        encoder=encoder,
        pooling=pooling or MultiHopAttention(settings.multi_hop.hops, settings.multi_hop.width),
        projection=projection if settings.projection else None,
        normalize=settings.normalize,
        token_weights=TokenWeights(tokens.vocab_size) if settings.token_weights else None,
        layer_weights=settings.layer_weights or None,
    )


def encoder_config(settings: ModelSettings, source: PretrainedEncoder) -> EncoderConfig | RecurrentConfig:
    """Returns the config of a tower's encoder: the pretrained one, or a new one on its token embeddings."""
    tokens = source.config
    if not settings.encoder:
        if isinstance(tokens, TransformerConfig):
            tokens = dataclasses.replace(tokens, lora=settings.lora)
        return dataclasses.replace(tokens, dropout=settings.dropout, attention_dropout=settings.attention_dropout)
    if settings.encoder == NO_ENCODER:
        return StaticConfig(tokens.vocab_size, tokens.width, pad_id=tokens.pad_id)
    new = settings.new_encoder
    if settings.encoder in CELLS:
        return RecurrentConfig(
            settings.encoder, new.layers, new.width or tokens.width, new.bidirectional, settings.dropout
        )
    require(
        new.width in (0, tokens.width),
        f"model.new_encoder.width is {new.width}; a transformer has the width of its token embeddings, "
        f"{tokens.width} in {source.folder}: set it to 0",
    )
    require(
        tokens.width % new.heads == 0,
        f"model.new_encoder.heads is {new.heads}, which does not divide the width {tokens.width} of the token "
        f"embeddings of {source.folder}",
    )
    return BertConfig(
        vocab_size=tokens.vocab_size,
        width=tokens.width,
        layers=new.layers,
        heads=new.heads,
        mlp_width=4 * tokens.width,
        positions=tokens.positions or POSITIONS,
        token_types=1,
        dropout=settings.dropout,
        attention_dropout=settings.attention_dropout,
        pad_id=tokens.pad_id,
    )


def stored_params(
    model: DualEncoder,
    settings: ModelSettings,
    sources: Mapping[str, PretrainedEncoder],
    draw_key: jax.Array,
    token_weights: Mapping[str, np.ndarray] | None = None,
) -> dict:
    """Returns the dual encoder's initial parameters: pretrained weights, and new ones drawn for each side.

    Pretrained weights are `StoredArray`s, which are read on demand.

    Args:
      model: the dual encoder.
      settings: settings that it was built from.
      sources: pretrained encoders by side.
      draw_key: PRNG key of the new parameters.
      token_weights: weights of tokens by side, float32 [V]; None if the settings have none.
    """
    question = sources["question"].stored_params()
    same = sources["answer"].folder == sources["question"].folder
    answer = question if same else sources["answer"].stored_params()
    towers = {}
    for side, read, draw in zip(SIDES, (question, answer), jax.random.split(draw_key), strict=True):
        tower = model.tower(side)
        groups = {group: p for group, p in read.items() if group != "projection" or tower.projection is not None}
        towers[side] = groups | _new_params(tower, settings, sources[side], draw)
        if token_weights is not None:
            towers[side]["token_weights"] = {"weight": token_weights[side]}
    return model.join(towers)


def _new_params(tower: Tower, settings: ModelSettings, source: PretrainedEncoder, draw_key: jax.Array) -> dict:
    """Returns the groups of a tower's parameters that are not pretrained."""
    width = encoder_config(settings, source).width
    mask, encodings, drawn = jnp.ones((1, 1), bool), jnp.zeros((1, 1, width)), {}
    if tower.projection is not None and not keeps_projection(settings, source):
        drawn["projection"] = _draw(tower.projection, draw_key, jnp.zeros((1, width)))
    if isinstance(tower.pooling, nn.Module):
        drawn["pooling"] = _draw(tower.pooling, jax.random.fold_in(draw_key, 1), encodings, mask)
    if settings.encoder in NEW_ENCODERS:
        embedded = jnp.zeros((1, 1, source.config.width))
        drawn["encoder"] = _draw(tower.encoder, jax.random.fold_in(draw_key, 2), embedded, Padded(mask))
    if tower.head is not None:
        embedding = jnp.zeros((1, embedding_width(settings, source)))
        drawn["head"] = _draw(tower.head, jax.random.fold_in(draw_key, 3), embedding)
    return drawn


def _draw(part: nn.Module, draw_key: jax.Array, *inputs) -> dict:
    return jax.jit(lambda key: part.init(key, *inputs)["params"])(draw_key)


def _encoder(settings: ModelSettings, source: PretrainedEncoder, dtype, platform: str | None) -> nn.Module:
    config = encoder_config(settings, source)
    if isinstance(config, StaticConfig):
        return NoEncoder()
    if dtype == jnp.float32:
        product_dtype = product_dtype_on(platform or jax.default_backend(), settings.product_dtype)
        config = dataclasses.replace(config, product_dtype=product_dtype)
    if isinstance(config, RecurrentConfig):
        return RecurrentEncoder(config, dtype, remat=settings.policy)
    return TransformerEncoder(config, dtype, remat=settings.policy)


def embedding_width(settings: ModelSettings, source: PretrainedEncoder) -> int:
    """Returns E, the width of a tower's embeddings."""
    return settings.projection or encoder_config(settings, source).width


def compute_dtype(name: str, platform: str | None = None) -> jnp.dtype:
    """Returns the dtype of `model.dtype` on a platform; None means the process's default backend."""
    if name == "auto":
        name = "float32" if (platform or jax.default_backend()) == "cpu" else "bfloat16"
    return jnp.dtype(name)


def finished_towers(
    sources: Mapping[str, PretrainedEncoder],
    platform: str | None = None,
    processors: Mapping[str, TextProcessor] | None = None,
) -> tuple[DualEncoder, dict]:
    """Builds the dual encoder described by both sides; returns it and its parameters, `StoredArray`s and NumPy arrays.

    An encoder with its token table, or a projection, is shared if both sides have the same folder for it. `platform`
    and `processors` are as in `build_dual_encoder`.

    Raises:
      EndxError: weights are missing or do not fit, or the towers' embeddings differ in width.
    """
    question, answer = (sources[side] for side in SIDES)
    shared = set()
    if question.folder == answer.folder:
        shared |= {"token_embedder", "encoder"}
    if question.head.projection is not None and question.head.projection == answer.head.projection:
        shared.add("projection")
    given = {s: ModelSettings(normalize=sources[s].head.normalize) for s in SIDES}
    settings = {s: fill_in(given[s], sources[s]) for s in SIDES}
    sharing = Sharing(frozenset(shared))
    dual_encoder = build_dual_encoder(settings, sources, platform, processors=processors, sharing=sharing)
    params = question.stored_params()
    same = (question.folder, question.head.projection) == (answer.folder, answer.head.projection)
    return dual_encoder, dual_encoder.join({"question": params, "answer": params if same else answer.stored_params()})
