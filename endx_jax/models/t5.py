"""T5 v1.1 encoders (Raffel et al. 2020; v1.1 as in Shazeer 2020) without the token table, which belongs to the tower.

Differences from BERT: a relative-position bias on attention scores, shared by all layers, instead of absolute
positions; RMSNorm before the sublayers; a gated MLP; no biases; no 1/sqrt(Dh) on attention scores. Activations reach
1e5, which overflows float16, so computation is in float32 or bfloat16.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.attention import attend_within, is_fused_packed
from endx_jax.models.config_keys import MOST_LAYERS, MOST_TOKENS, HuggingFaceConfig, fraction, whole
from endx_jax.models.dropout import dropout, fold
from endx_jax.models.layout import Layout
from endx_jax.models.sharding_hints import keep_rows
from endx_jax.models.stack import run_layers

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class T5Config(HuggingFaceConfig):
    """Config of a T5 v1.1 encoder; each attribute names its key in Hugging Face's `config.json`.

    Attributes:
      vocab_size: rows V of the token table (`vocab_size`).
      width: model width D (`d_model`).
      layers: number of layers (`num_layers`).
      heads: number of attention heads H (`num_heads`).
      head_width: width of a head (`d_kv`); H times it may differ from D.
      mlp_width: hidden width of the MLP (`d_ff`).
      buckets: number of relative-position buckets (`relative_attention_num_buckets`).
      max_distance: distance from which all positions share a bucket (`relative_attention_max_distance`).
      norm_epsilon: epsilon of the norms (`layer_norm_epsilon`).
      dropout: dropout rate of embeddings, sublayers and the MLP's hidden layer (`dropout_rate`).
      attention_dropout: dropout rate of attention weights (`dropout_rate`).
      initializer_range: standard deviation of new token vectors.
      pad_id: id of the padding token (`pad_token_id`).
      positions: None, as there is no length limit.
    """

    vocab_size: int = whole("vocab_size", most=MOST_TOKENS)
    width: int = whole("d_model")
    layers: int = whole("num_layers", most=MOST_LAYERS)
    heads: int = whole("num_heads")
    head_width: int = whole("d_kv")
    mlp_width: int = whole("d_ff")
    buckets: int = whole("relative_attention_num_buckets", default=32, least=4)
    max_distance: int = whole("relative_attention_max_distance", default=128, least=2)
    norm_epsilon: float = fraction("layer_norm_epsilon", default=1e-6)
    dropout: float = fraction("dropout_rate", default=0.1)
    attention_dropout: float = fraction("dropout_rate", default=0.1)
    initializer_range: float = 1.0
    pad_id: int = whole("pad_token_id", default=0, least=0, most=MOST_TOKENS)
    positions: int | None = None

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json` with `"model_type": "t5"`; `where` is the file, for messages.

        Raises:
          EndxError: a key is missing, a number is out of range, or the model is not T5 v1.1.
        """
        projection = config.get("feed_forward_proj", "relu")
        if projection != "gated-gelu":
            raise EndxError(
                f"{where}: T5 with feed_forward_proj={json_files.shown(projection)} is not supported, only v1.1's "
                "'gated-gelu'"
            )
        return super().from_hugging_face(config, where)


class T5Encoder(nn.Module):
    """T5 encoder: dropout, layers, norm and dropout.

    Attributes:
      config: config of the encoder.
      dtype: dtype of the computation.
      remat: rematerialisation policy, see `stack.rematerialised`.
      scan_layers: stacks the layers' parameters and scans over them, see `run_layers`.
    """

    config: T5Config
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    remat: str = "none"
    scan_layers: bool | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the arrays returned with `every=True`, in order."""
        return tuple(f"layer {n}" for n in range(1, self.config.layers + 1))

    @nn.compact
    def __call__(
        self, embedded: Array, layout: Layout, dropout_keys: Array | None = None, *, every: bool = False
    ) -> Array | list[Array]:
        """Encodes token embeddings.

        Args:
          embedded: token array [..., D] in the form of `layout`.
          layout: arrangement of the tokens.
          dropout_keys: PRNG keys [B]; None disables dropout.
          every: returns the output of each layer, the last one with the encoder's norm.

        Returns:
          Encodings with the shape of `embedded`, or a list of them if `every` is set.
        """
        config = self.config
        table = self.param("relative_position_bias", nn.initializers.normal(0.02), (config.buckets, config.heads))
        if is_fused_packed(layout, config.heads, dropout_keys, config.attention_dropout):
            distance = jnp.arange(1 - layout.width, layout.width)
            bias = jnp.asarray(table)[relative_position_buckets(distance, config.buckets, config.max_distance)]
        else:
            position = jnp.arange(layout.width)
            distance = position[None, :] - position[:, None]
            buckets = relative_position_buckets(distance, config.buckets, config.max_distance)
            bias = jnp.moveaxis(jnp.asarray(table)[buckets], -1, 0)[None]  # [1, H, L, L]
        outer: list[Array | None] = [None, None]
        if dropout_keys is not None:
            outer = [layout.token_keys(fold(dropout_keys, config.layers + n)) for n in range(2)]
        x = dropout(embedded.astype(self.dtype), outer[0], config.dropout)
        *inner, last = run_layers(self, T5Layer, x, dropout_keys, layout, bias, every=every)
        last = dropout(_norm(config, self.dtype, "norm")(last), outer[1], config.dropout)
        return [*inner[1:], last] if every else last


class T5Layer(nn.Module):
    """Self-attention and gated MLP with norms before them and residuals around them (pre-norm)."""

    config: T5Config
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, dropout_keys: Array | None, layout: Layout, bias: Array) -> Array:
        """Maps a token array [..., D] to one of the same shape."""
        config = self.config
        keys = (None,) * 4 if dropout_keys is None else tuple(fold(dropout_keys, site) for site in range(4))
        after = [layout.token_keys(key) for key in keys[1:]]
        normed = _norm(config, self.dtype, "attention_norm")(x)
        attended = T5Attention(config, self.dtype, name="attention")(normed, layout, bias, keys[0])
        x = x + dropout(attended, after[0], config.dropout)
        normed = _norm(config, self.dtype, "mlp_norm")(x)
        dense = functools.partial(_dense, config, self.dtype)
        hidden = nn.gelu(dense(config.mlp_width, "mlp_gate")(normed)) * dense(config.mlp_width, "mlp_up")(normed)
        hidden = dense(config.width, "mlp_down")(dropout(hidden, after[1], config.dropout))
        return keep_rows(x + dropout(hidden, after[2], config.dropout))


class T5Attention(nn.Module):
    """Multi-head self-attention with a relative-position bias on its scores and bias-free projections."""

    config: T5Config
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, layout: Layout, bias: Array, dropout_keys: Array | None) -> Array:
        """Maps a token array [..., D] to one of the same shape, with the bias [1, H, L, L] on attention scores."""
        config = self.config
        inner = config.heads * config.head_width
        query, key, value = (
            _dense(config, self.dtype, inner, name)(x).reshape(*x.shape[:2], config.heads, config.head_width)
            for name in ("query", "key", "value")
        )
        attended = attend_within(
            query,
            key,
            value,
            layout,
            scale=1.0,
            bias=bias,
            dropout_keys=dropout_keys,
            dropout_rate=config.attention_dropout,
        )
        return _dense(config, self.dtype, config.width, "output")(attended.reshape(*x.shape[:2], inner))


def relative_position_buckets(distance: Array, buckets: int, max_distance: int) -> Array:
    """Returns the buckets, int [...], of distances [...], each a key's position minus a query's.

    Half of the buckets are for keys after the query. In each half, the first half are single distances, the others grow
    logarithmically up to `max_distance`, and all greater distances share the last one.
    """
    known = np.arange(-max_distance, max_distance + 1)
    half = buckets // 2
    exact = half // 2
    far = np.maximum(np.abs(known), 1).astype(np.float32)
    growth = np.log(far / exact) / np.float32(np.log(max_distance / exact)) * (half - exact)
    logarithmic = np.minimum(exact + growth.astype(np.int32), half - 1)
    of_distance = np.where(np.abs(known) < exact, np.abs(known), logarithmic) + half * (known > 0)
    return jnp.asarray(of_distance)[jnp.clip(distance, -max_distance, max_distance) + max_distance]


def _dense(config: T5Config, dtype: jnp.dtype, width: int, name: str) -> nn.Dense:
    draw = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    return nn.Dense(width, use_bias=False, dtype=dtype, kernel_init=draw, name=name)


def _norm(config: T5Config, dtype: jnp.dtype, name: str) -> nn.RMSNorm:
    return nn.RMSNorm(epsilon=config.norm_epsilon, dtype=dtype, name=name)
