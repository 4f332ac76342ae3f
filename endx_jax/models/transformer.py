"""Transformer encoder of every family, composed by its config, without the token table, which belongs to the tower.

A family (`endx_jax.encoders`) is a `TransformerConfig` that chooses from the parts in `layers.py`: positions as a
table, as a bias on attention scores or as rotations; norms after or before the sublayers; a plain or a gated MLP;
biases; attention to all tokens, to earlier ones or in windows; parameters shared by all layers.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.errors import EndxError
from endx_jax.models.attention import Pattern, attend_within
from endx_jax.models.dropout import dropout, fold
from endx_jax.models.layers import ACTIVATIONS, Norm, activated, relative_position_bias, rotate, rotations
from endx_jax.models.layout import Layout
from endx_jax.models.lora import Linear
from endx_jax.models.products import dot_general_of
from endx_jax.models.sharding_hints import keep_rows, platform
from endx_jax.models.stack import run_layers
from endx_jax.models.transformer_config import MLP, PROJECTIONS, LayerKind, TransformerConfig

Array = jax.Array

# Key number of the first linear layer's adapter, after those of the dropouts of a layer.
ADAPTER_KEYS = 8


class TransformerEncoder(nn.Module):
    """Transformer encoder: embeddings of positions and segments, layers and norms, computed in `dtype`.

    `remat` is a policy of `stack.rematerialised`; `stack.run_layers` describes `scan_layers`.
    """

    config: TransformerConfig
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    remat: str = "none"
    scan_layers: bool | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the arrays returned with `every=True`, in order."""
        before = ("encoder input",) if self.config.embedding_norm else ()
        return (*before, *(f"layer {n}" for n in range(1, self.config.layers + 1)))

    @nn.compact
    def __call__(
        self, embedded: Array, layout: Layout, dropout_keys: Array | None = None, *, every: bool = False
    ) -> Array | list[Array]:
        """Encodes token embeddings.

        Args:
          embedded: token array [..., D] in the form of `layout`; the width is the token table's.
          layout: arrangement of the tokens, of texts that are no longer than the config's positions.
          dropout_keys: PRNG keys [B]; None disables dropout.
          every: returns the input of the first layer, if it is not `embedded`, and the output of each layer, the last
            one with the final norm.

        Returns:
          Encodings, a token array [..., D], or a list of them if `every` is set.
        """
        config, length = self.config, layout.width
        if config.positions is not None and length > config.positions:
            raise EndxError(f"a text of {length} tokens exceeds the encoder's {config.positions} positions")
        outer = [layout.token_keys(fold(dropout_keys, config.layers + n)) for n in range(2)]
        norm = functools.partial(_norm, config, self.dtype)

        x = embedded.astype(self.dtype)
        if added := self._added(layout):
            x = (embedded + sum(added[1:], added[0]).astype(self.dtype)).astype(self.dtype)
        if config.embedding_scale:
            x = x * jnp.asarray(math.sqrt(config.width), self.dtype)
        if config.embedding_norm:
            x = norm("norm")(x)
        x = dropout(x, outer[0], config.dropout)
        if config.embedding_width is not None:
            draw, product = config.kernel_init, dot_general_of(config.product_dtype, self.dtype)
            name = "embedding_projection"
            x = nn.Dense(config.width, dtype=self.dtype, kernel_init=draw, dot_general=product, name=name)(x)

        rotated = [rotations(layout, config.head, rope) for rope in config.ropes]
        bias = None if config.bias_by_layer else _relative_bias(self, layout)
        *inner, last = run_layers(
            self, TransformerLayer, x, dropout_keys, layout, bias, rotated, every=every, shared=config.shared_layers
        )
        if config.pre_norm:
            last = norm("final_norm" if config.embedding_norm else "norm")(last)
        if config.final_dropout:
            last = dropout(last, outer[1], config.dropout)
        return [*inner[not config.embedding_norm :], last] if every else last

    def _added(self, layout: Layout) -> list[Array]:
        """Embeddings of positions and segments, to add to those of the tokens."""
        config, added = self.config, []
        draw = nn.initializers.normal(config.initializer_range)
        if config.position_table:
            rows = config.first_position + (config.positions or 0)
            table = self.param("position_embedding", draw, (rows, config.table_width))
            after = config.after_padding
            added.append(layout.by_position_after(table, config.pad_id) if after else layout.by_position(table))
        if config.token_types:
            table = self.param("type_embedding", draw, (config.token_types, config.table_width))
            added.append(layout.by_segment(table))
        return added


class TransformerLayer(nn.Module):
    """Self-attention and MLP with residuals around them, and norms after each (post-norm) or before (pre-norm)."""

    config: TransformerConfig
    dtype: jnp.dtype
    kind: LayerKind

    @nn.compact
    def __call__(
        self, x: Array, dropout_keys: Array | None, layout: Layout, bias: Array | None, rotated: Sequence
    ) -> Array:
        """Maps a token array [..., D] to one of the same shape; `rotated` has the rotations of `config.ropes`."""
        config, sites = self.config, itertools.count()

        def drop(x: Array) -> Array:
            return dropout(x, layout.token_keys(fold(dropout_keys, next(sites))), config.dropout)

        def attention(x: Array) -> Array:
            keys = fold(dropout_keys, next(sites))
            layer_bias = _relative_bias(self, layout) if config.bias_by_layer else bias
            rotation = rotated[config.ropes.index(self.kind.rope)] if self.kind.rope else None
            attended = SelfAttention(config, self.dtype, self.kind.window, name="attention")
            return drop(attended(x, layout, layer_bias, rotation, keys))

        def mlp(x: Array) -> Array:
            linear = functools.partial(_linear, config, self.dtype, layout, dropout_keys)
            inputs = [linear(config.mlp_width, name, x) for name in ("mlp_up", "mlp_gate")[: 1 + config.gated]]
            # The gradient computes gated units again, which are as large as each input. Compilers would keep them for
            # the last product if that were not part of it, but on a CPU a step of T5 then takes a quarter longer.
            with_product = config.gated and platform() != "cpu"
            units = functools.partial(activated, ACTIVATIONS[config.activation])
            compute_units = jax.checkpoint(units) if config.gated and not with_product else units

            def down(_: nn.Module, *inputs: Array) -> Array:
                hidden = compute_units(*inputs)
                return linear(config.width, "mlp_down", drop(hidden) if config.hidden_dropout else hidden)

            return drop((nn.remat(down) if with_product else down)(self, *inputs))

        norm = functools.partial(_norm, config, self.dtype)
        if config.pre_norm:
            attended = attention(norm("attention_norm")(x) if self.kind.attention_norm else x)
            x = x + (norm("attention_result_norm")(attended) if config.result_norm else attended)
            mapped = mlp(norm("mlp_norm")(x))
            return keep_rows(x + (norm("mlp_result_norm")(mapped) if config.result_norm else mapped))
        x = norm("attention_norm")(x + attention(x))
        return keep_rows(norm("mlp_norm")(x + mlp(x)))


class SelfAttention(nn.Module):
    """Multi-head self-attention of each token over the tokens of its own text, within the `window` of a `LayerKind`."""

    config: TransformerConfig
    dtype: jnp.dtype
    window: int | None = None

    @nn.compact
    def __call__(
        self, x: Array, layout: Layout, bias: Array | None, rotation: tuple | None, dropout_keys: Array | None
    ) -> Array:
        """Maps a token array [..., D] to one of the same shape, with a bias on scores and rotations of the heads."""
        config = self.config
        linear = functools.partial(_linear, config, self.dtype, layout, dropout_keys)
        query, key, value = (
            linear(heads * config.head, name, x).reshape(*x.shape[:2], heads, config.head)
            for name, heads in (("query", config.heads), ("key", config.groups), ("value", config.groups))
        )
        if config.head_norm:
            query, key = (_norm(config, self.dtype, name)(x) for name, x in (("query_norm", query), ("key_norm", key)))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        scale = 1 / math.sqrt(config.head if config.score_width is None else config.score_width)
        pattern = Pattern(scale, config.causal, self.window, config.attention_dropout)
        attended = attend_within(query, key, value, layout, pattern, bias, dropout_keys)
        return linear(config.width, "output", attended.reshape(*x.shape[:2], -1))


def _relative_bias(module: Any, layout: Layout) -> Array | None:
    """Returns the bias on attention scores by the module's parameter; None if the config has no buckets."""
    config = module.config
    if not config.buckets:
        return None
    draw = nn.initializers.normal(0.02)
    table = jnp.asarray(module.param("relative_position_bias", draw, (config.buckets, config.heads)))
    return relative_position_bias(table, layout.width, config.max_distance)


def _linear(
    config: TransformerConfig,
    dtype: jnp.dtype,
    layout: Layout,
    dropout_keys: Array | None,
    width: int,
    name: str,
    x: Array,
) -> Array:
    """Applies the linear map `name`, one of `PROJECTIONS` and `MLP`, to a token array [..., D]."""
    number, lora = ADAPTER_KEYS + (*PROJECTIONS, *MLP).index(name), config.lora
    keys = layout.token_keys(fold(dropout_keys, number)) if lora.dropout else None
    biased, draw, product = name in config.biases, config.kernel_init, dot_general_of(config.product_dtype, dtype)
    linear = Linear(width, use_bias=biased, dtype=dtype, kernel_init=draw, dot_general=product, lora=lora, name=name)
    return linear(x, keys)


def _norm(config: TransformerConfig, dtype: jnp.dtype, name: str) -> nn.Module:
    biased = config.norm_bias and not config.rms
    return Norm(config.norm_epsilon, dtype, biased, not config.rms, config.from_one, name=name)
