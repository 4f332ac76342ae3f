"""BERT encoders (Devlin et al. 2019) without the token table, which belongs to the tower.

The tower looks tokens up; the encoder adds positions, token types and their norm, and runs the layers. Parameters are
float32 and computation is in `dtype`; norms and softmaxes are float32 inside.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.attention import attend_within
from endx_jax.models.config_keys import MOST_LAYERS, MOST_TOKENS, fraction, read_keys, whole
from endx_jax.models.dropout import dropout, fold
from endx_jax.models.elementwise import LayerNorm, gelu
from endx_jax.models.layout import Layout
from endx_jax.models.sharding_hints import keep_rows
from endx_jax.models.stack import run_layers

Array = jax.Array

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": lambda x: nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
    "silu": nn.silu,
}

# By field of `BertConfig`.
KEYS = {
    "vocab_size": whole("vocab_size", most=MOST_TOKENS),
    "width": whole("hidden_size"),
    "layers": whole("num_hidden_layers", most=MOST_LAYERS),
    "heads": whole("num_attention_heads"),
    "mlp_width": whole("intermediate_size"),
    "positions": whole("max_position_embeddings"),
    "token_types": whole("type_vocab_size", default=2),
    "norm_epsilon": fraction("layer_norm_eps", default=1e-12),
    "dropout": fraction("hidden_dropout_prob", default=0.1),
    "attention_dropout": fraction("attention_probs_dropout_prob", default=0.1),
    "initializer_range": fraction("initializer_range", default=0.02),
    "pad_id": whole("pad_token_id", default=0, least=0, most=MOST_TOKENS),
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shape of a BERT encoder, with the keys of its Hugging Face `config.json`.

    Attributes:
      vocab_size: V, rows of the token table.
      width: D, `hidden_size`.
      layers: `num_hidden_layers`.
      heads: H, `num_attention_heads`; D / H is the width of a head.
      mlp_width: `intermediate_size`.
      positions: `max_position_embeddings`, the longest input in tokens.
      token_types: `type_vocab_size`.
      activation: `hidden_act`.
      norm_epsilon: `layer_norm_eps`.
      dropout: `hidden_dropout_prob`, of embeddings and of each sublayer's output, in training.
      attention_dropout: `attention_probs_dropout_prob`, in training.
      initializer_range: standard deviation of newly drawn weights.
      pad_id: `pad_token_id`.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    mlp_width: int
    positions: int
    token_types: int = 2
    activation: str = "gelu"
    norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    pad_id: int = 0

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> "BertConfig":
        """Reads the contents of a `config.json` with `"model_type": "bert"`; `where` is the file, for messages.

        Raises:
          EndxError: for a missing key, a number out of bounds, or a variant of BERT that computes something else.
        """
        position_type = config.get("position_embedding_type", "absolute")
        if position_type != "absolute":
            raise EndxError(
                f"{where}: BERT with position_embedding_type={json_files.shown(position_type)} is not supported, only "
                "'absolute'"
            )
        if config.get("is_decoder"):
            raise EndxError(f"{where}: BERT with is_decoder=true (causal attention) is not supported")
        activation = config.get("hidden_act", "gelu")
        if activation not in list(ACTIVATIONS):
            known = ", ".join(ACTIVATIONS)
            raise EndxError(f"{where}: BERT activation {json_files.shown(activation)} is none of {known}")
        numbers: dict[str, Any] = read_keys(config, KEYS, where)
        if numbers["width"] % numbers["heads"]:
            raise EndxError(f"{where}: BERT width {numbers['width']} is not a multiple of its {numbers['heads']} heads")
        return cls(activation=activation, **numbers)


class BertEncoder(nn.Module):
    """BERT encoder: positions, token types, norm and layers.

    Attributes:
      config: the shape.
      dtype: of the computation.
      remat: see `rematerialised` in models/stack.py.
      scan_layers: see `run_layers`.
    """

    config: BertConfig
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    remat: str = "none"
    scan_layers: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that `every` returns, in order."""
        return ("encoder input", *(f"layer {n}" for n in range(1, self.config.layers + 1)))

    @nn.compact
    def __call__(
        self, embedded: Array, layout: Layout, dropout_keys: Array | None = None, *, every: bool = False
    ) -> Array | list[Array]:
        """Encodes token embeddings, laid out as `layout` says, to encodings of the same shape.

        `dropout_keys` [B] switches dropout on. No text may be longer than the config's positions. `every` returns a
        list of the input of the first layer and the output of each layer; not with `scan_layers`.
        """
        config, length = self.config, layout.width
        if length > config.positions:
            raise EndxError(f"a text of {length} tokens is longer than the {config.positions} positions of the encoder")
        draw = nn.initializers.normal(config.initializer_range)
        positions = self.param("position_embedding", draw, (config.positions, config.width))
        types = self.param("type_embedding", draw, (config.token_types, config.width))
        x = embedded + (layout.by_position(positions) + layout.by_segment(types)).astype(self.dtype)
        x = _norm(config, self.dtype, "norm")(x.astype(self.dtype))
        keys = None if dropout_keys is None else fold(dropout_keys, config.layers)
        x = dropout(x, layout.token_keys(keys), config.dropout)
        outputs = run_layers(
            BertLayer,
            config,
            self.dtype,
            x,
            dropout_keys,
            layout,
            remat=self.remat,
            scan_layers=self.scan_layers,
        )
        return outputs if every else outputs[-1]


class BertLayer(nn.Module):
    """Self-attention and MLP, each followed by residual and norm (post-norm)."""

    config: BertConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, dropout_keys: Array | None, layout: Layout) -> tuple[Array, None]:
        """Maps a token array [..., D] to another; the second result is required by `nn.scan`."""
        config = self.config
        keys = (None,) * 3 if dropout_keys is None else tuple(fold(dropout_keys, site) for site in range(3))
        after = [layout.token_keys(key) for key in keys[1:]]
        attended = SelfAttention(config, self.dtype, name="attention")(x, layout, keys[0])
        x = _norm(config, self.dtype, "attention_norm")(x + dropout(attended, after[0], config.dropout))
        hidden = ACTIVATIONS[config.activation](_dense(config, self.dtype, config.mlp_width, "mlp_up")(x))
        hidden = _dense(config, self.dtype, config.width, "mlp_down")(hidden)
        return keep_rows(_norm(config, self.dtype, "mlp_norm")(x + dropout(hidden, after[1], config.dropout))), None


class SelfAttention(nn.Module):
    """Multi-head self-attention with biases in all four projections."""

    config: BertConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, layout: Layout, dropout_keys: Array | None) -> Array:
        """Maps a token array [..., D] to another; every token attends to the real tokens of its text."""
        config = self.config
        head_width = config.width // config.heads
        query, key, value = (
            _dense(config, self.dtype, config.width, name)(x).reshape(*x.shape[:2], config.heads, head_width)
            for name in ("query", "key", "value")
        )
        attended = attend_within(
            query,
            key,
            value,
            layout,
            scale=1 / math.sqrt(head_width),
            dropout_keys=dropout_keys,
            dropout_rate=config.attention_dropout,
        )
        return _dense(config, self.dtype, config.width, "output")(attended.reshape(x.shape))


def _dense(config: BertConfig, dtype: jnp.dtype, width: int, name: str) -> nn.Dense:
    return nn.Dense(width, dtype=dtype, kernel_init=nn.initializers.normal(config.initializer_range), name=name)


def _norm(config: BertConfig, dtype: jnp.dtype, name: str) -> LayerNorm:
    return LayerNorm(epsilon=config.norm_epsilon, dtype=dtype, name=name)
