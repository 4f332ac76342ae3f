"""BERT encoders (Devlin et al. 2019) without the token table, which belongs to the tower.

The encoder adds positions, token types and their norm to token embeddings, and runs the layers. Parameters are float32
and computation is in `dtype`; norms and softmaxes are computed in float32.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.models.attention import attend_within
from endx_jax.models.config_keys import MOST_LAYERS, MOST_TOKENS, HuggingFaceConfig, fraction, whole
from endx_jax.models.dropout import dropout, fold
from endx_jax.models.layout import Layout
from endx_jax.models.sharding_hints import keep_rows
from endx_jax.models.stack import run_layers
from endx_jax.numerics import at_least_float32

Array = jax.Array


def gelu(x: Array) -> Array:
    """Computes the exact GELU, x Phi(x) (Hendrycks and Gimpel 2016), by erf as in PyTorch.

    `jax.nn.gelu` uses erfc, which keeps relative precision of tiny results, with three times as many passes.
    """
    return x * (0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5))))


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": lambda x: nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
    "silu": nn.silu,
}


@dataclasses.dataclass(frozen=True)
class BertConfig(HuggingFaceConfig):
    """Config of a BERT encoder; each attribute names its key in Hugging Face's `config.json`.

    Attributes:
      vocab_size: rows V of the token table (`vocab_size`).
      width: model width D (`hidden_size`).
      layers: number of layers (`num_hidden_layers`).
      heads: number of attention heads H, of width D / H (`num_attention_heads`).
      mlp_width: hidden width of the MLP (`intermediate_size`).
      positions: maximum input length in tokens (`max_position_embeddings`).
      token_types: number of segment embeddings (`type_vocab_size`).
      activation: activation function of the MLP (`hidden_act`).
      norm_epsilon: epsilon of the LayerNorms (`layer_norm_eps`).
      dropout: dropout rate of embeddings and of each sublayer's output (`hidden_dropout_prob`).
      attention_dropout: dropout rate of attention weights (`attention_probs_dropout_prob`).
      initializer_range: standard deviation of new weights (`initializer_range`).
      pad_id: id of the padding token (`pad_token_id`).
    """

    vocab_size: int = whole("vocab_size", most=MOST_TOKENS)
    width: int = whole("hidden_size")
    layers: int = whole("num_hidden_layers", most=MOST_LAYERS)
    heads: int = whole("num_attention_heads")
    mlp_width: int = whole("intermediate_size")
    positions: int = whole("max_position_embeddings")
    token_types: int = whole("type_vocab_size", default=2)
    activation: str = "gelu"
    norm_epsilon: float = fraction("layer_norm_eps", default=1e-12)
    dropout: float = fraction("hidden_dropout_prob", default=0.1)
    attention_dropout: float = fraction("attention_probs_dropout_prob", default=0.1)
    initializer_range: float = fraction("initializer_range", default=0.02)
    pad_id: int = whole("pad_token_id", default=0, least=0, most=MOST_TOKENS)

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json` with `"model_type": "bert"`; `where` is the file, for messages.

        Raises:
          EndxError: a key is missing, a number is out of range, or the variant of BERT is not supported.
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
        found = dataclasses.replace(super().from_hugging_face(config, where), activation=activation)
        if found.width % found.heads:
            raise EndxError(f"{where}: BERT width {found.width} is not a multiple of its {found.heads} heads")
        return found


class BertEncoder(nn.Module):
    """BERT encoder: positions, token types, norm and layers.

    Attributes:
      config: config of the encoder.
      dtype: dtype of the computation.
      remat: rematerialisation policy, see `stack.rematerialised`.
      scan_layers: stacks the layers' parameters and scans over them, see `run_layers`.
    """

    config: BertConfig
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    remat: str = "none"
    scan_layers: bool | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the arrays returned with `every=True`, in order."""
        return ("encoder input", *(f"layer {n}" for n in range(1, self.config.layers + 1)))

    @nn.compact
    def __call__(
        self, embedded: Array, layout: Layout, dropout_keys: Array | None = None, *, every: bool = False
    ) -> Array | list[Array]:
        """Encodes token embeddings.

        Args:
          embedded: token array [..., D] in the form of `layout`.
          layout: arrangement of the tokens.
          dropout_keys: PRNG keys [B]; None disables dropout.
          every: returns the input of the first layer and the output of each layer.

        Returns:
          Encodings with the shape of `embedded`, or a list of them if `every` is set.

        Raises:
          EndxError: a text is longer than the config's positions.
        """
        config, length = self.config, layout.width
        if length > config.positions:
            raise EndxError(f"a text of {length} tokens exceeds the encoder's {config.positions} positions")
        draw = nn.initializers.normal(config.initializer_range)
        positions = self.param("position_embedding", draw, (config.positions, config.width))
        types = self.param("type_embedding", draw, (config.token_types, config.width))
        x = embedded + (layout.by_position(positions) + layout.by_segment(types)).astype(self.dtype)
        x = _norm(config, self.dtype, "norm")(x.astype(self.dtype))
        keys = None if dropout_keys is None else fold(dropout_keys, config.layers)
        x = dropout(x, layout.token_keys(keys), config.dropout)
        outputs = run_layers(self, BertLayer, x, dropout_keys, layout, every=every)
        return outputs if every else outputs[-1]


class BertLayer(nn.Module):
    """Self-attention and MLP, each followed by residual and norm (post-norm)."""

    config: BertConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, dropout_keys: Array | None, layout: Layout) -> Array:
        """Maps a token array [..., D] to one of the same shape."""
        config = self.config
        keys = (None,) * 3 if dropout_keys is None else tuple(fold(dropout_keys, site) for site in range(3))
        after = [layout.token_keys(key) for key in keys[1:]]
        attended = SelfAttention(config, self.dtype, name="attention")(x, layout, keys[0])
        x = _norm(config, self.dtype, "attention_norm")(x + dropout(attended, after[0], config.dropout))
        hidden = ACTIVATIONS[config.activation](_dense(config, self.dtype, config.mlp_width, "mlp_up")(x))
        hidden = _dense(config, self.dtype, config.width, "mlp_down")(hidden)
        return keep_rows(_norm(config, self.dtype, "mlp_norm")(x + dropout(hidden, after[1], config.dropout)))


class SelfAttention(nn.Module):
    """Multi-head self-attention with biases in all four projections."""

    config: BertConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, layout: Layout, dropout_keys: Array | None) -> Array:
        """Maps a token array [..., D] to one of the same shape; tokens attend to the tokens of their own text."""
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


class LayerNorm(nn.Module):
    """Layer normalisation of the last axis (Ba et al. 2016), with parameters `scale` and `bias`, float32 inside.

    Attributes:
      epsilon: added to the variance.
      dtype: of the result.
    """

    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [..., D] to [..., D]."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        normalized = _normalize(at_least_float32(x), self.epsilon)
        alike = (1,) * (x.ndim - 1) + x.shape[-1:]
        return (normalized * scale.reshape(alike) + bias.reshape(alike)).astype(self.dtype)


def _standardize(x: Array, epsilon: float) -> tuple[Array, Array]:
    # In two passes: E[x^2] - E[x]^2 cancels where the mean is large, and BERT has such channels.
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + epsilon)
    return centred * rate, rate


@jax.custom_vjp
def _normalize(x: Array, epsilon: float) -> Array:
    """Scales the last axis to mean 0 and variance 1. Only the result and the rate are kept for the gradient."""
    return _standardize(x, epsilon)[0]


def _normalize_forward(x, epsilon):
    normalized, rate = _standardize(x, epsilon)
    return normalized, (normalized, rate)


def _normalize_backward(kept, gradient):
    normalized, rate = kept
    mean = jnp.mean(gradient, axis=-1, keepdims=True)
    along = jnp.mean(gradient * normalized, axis=-1, keepdims=True)
    return rate * (gradient - mean - normalized * along), None


_normalize.defvjp(_normalize_forward, _normalize_backward)


def _norm(config: BertConfig, dtype: jnp.dtype, name: str) -> LayerNorm:
    return LayerNorm(epsilon=config.norm_epsilon, dtype=dtype, name=name)
