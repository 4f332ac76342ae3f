"""Config of a transformer encoder: the parts that a family chooses, and their keys in `config.json`."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn

from endx_jax.errors import EndxError
from endx_jax.models.config_keys import (
    MOST_LAYERS,
    MOST_TOKENS,
    HuggingFaceConfig,
    check_supported,
    enum_key,
    float_key,
    int_key,
)
from endx_jax.models.layers import ACTIVATIONS, Rope
from endx_jax.models.lora import NONE, LoraSettings
from endx_jax.models.products import FLOAT32

PROJECTIONS = ("query", "key", "value", "output")
MLP = ("mlp_up", "mlp_gate", "mlp_down")
# Keys of `config.json` of which every family supports only some values: see `config_keys.check_supported`.
FALSE, ABSENT = (False, None), (None,)
SUPPORTED: dict[str, Sequence] = {
    "is_decoder": FALSE,
    "add_cross_attention": FALSE,
    "quantization_config": ABSENT,
    "transformers_weights": (None, "model.safetensors"),
    "pruned_heads": (None, {}),
    "partial_rotary_factor": (1.0, None),
    "position_embedding_type": ("absolute", None),
}


class LayerKind(NamedTuple):
    """Properties in which the layers of an encoder may differ.

    Attributes:
      rope: rotary position embeddings, or None.
      window: tokens attend to those at most so many positions before and after them; None: to all of their text.
      attention_norm: has a norm before attention, if the layers are pre-norm.
    """

    rope: Rope | None = None
    window: int | None = None
    attention_norm: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(HuggingFaceConfig):
    """Config of a transformer encoder, whose keys in `config.json` have BERT's names or those of other families.

    Attributes:
      vocab_size: rows V of the token table (`vocab_size`).
      embedding_width: columns of the token table, if they are projected to the model's width; None: D.
      width: model width D (`hidden_size`).
      layers: number of layers (`num_hidden_layers`).
      heads: number of attention heads H (`num_attention_heads`).
      kv_heads: number K of heads of keys and values (`num_key_value_heads`); None: H.
      head_width: width Dh of a head; None: D / H.
      mlp_width: hidden width of the MLP (`intermediate_size`).
      positions: maximum input length in tokens (`max_position_embeddings`); None: unlimited.
      position_table: adds learned position embeddings.
      after_padding: the rows of the position table begin after that of the padding id.
      token_types: number of segment embeddings; 0: none.
      buckets: buckets of the relative-position bias on attention scores; 0: none.
      max_distance: distance from which all positions share a bucket.
      bias_by_layer: each layer has a relative-position bias of its own.
      rope: rotary position embeddings of all layers; None: none.
      layer_kinds: kinds of the layers, where they differ.
      activation: activation function of the MLP (`hidden_act`).
      gated: multiplies the activated `mlp_gate` by `mlp_up`; else `mlp_up` is activated.
      biases: names of the layers' linear maps with a bias, of `PROJECTIONS` and `MLP`.
      causal: tokens attend to no later tokens.
      score_width: attention scores are multiplied by 1 / sqrt(score_width); None: Dh.
      head_norm: normalises each head of queries and keys before its rotation.
      pre_norm: norms come before the sublayers and at the end; else after each residual.
      result_norm: pre-norm layers normalise the results of their sublayers too.
      embedding_scale: multiplies token embeddings by sqrt(D).
      embedding_norm: normalises the sum of the embeddings.
      rms: norms are RMSNorm (Zhang and Sennrich 2019) without bias; else LayerNorm.
      from_one: norms multiply by 1 + their parameter.
      norm_bias: LayerNorms have a bias.
      norm_epsilon: epsilon of the norms (`layer_norm_eps`).
      shared_layers: all layers have the parameters of the first.
      dropout: dropout rate of embeddings and of each sublayer's output (`hidden_dropout_prob`).
      hidden_dropout: applies it to the MLP's hidden layer too.
      final_dropout: applies it to the encodings too.
      attention_dropout: dropout rate of attention weights (`attention_probs_dropout_prob`).
      initializer_range: standard deviation of new weights (`initializer_range`).
      pad_id: id of the padding token (`pad_token_id`).
      lora: adapters of the layers' linear maps.
      product_dtype: data type of the factors of linear maps in a float32 computation: see `models.products`.
    """

    supported: ClassVar[dict[str, Sequence]] = SUPPORTED

    vocab_size: int = int_key("vocab_size", most=MOST_TOKENS)
    embedding_width: int | None = None
    width: int = int_key("hidden_size", "dim", "d_model", "n_embd")
    layers: int = int_key("num_hidden_layers", "n_layers", "num_layers", "n_layer", most=MOST_LAYERS)
    heads: int = int_key("num_attention_heads", "n_heads", "num_heads", "n_head")
    kv_heads: int | None = None
    head_width: int | None = None
    mlp_width: int = int_key("intermediate_size", "hidden_dim", "d_ff", "n_inner")
    positions: int | None = int_key("max_position_embeddings", "n_positions")
    position_table: bool = False
    after_padding: bool = False
    token_types: int = 0
    buckets: int = 0
    max_distance: int = 128
    bias_by_layer: bool = False
    rope: Rope | None = None
    layer_kinds: tuple[LayerKind, ...] = ()
    activation: str = enum_key("hidden_act", "activation", choices=ACTIVATIONS, default="gelu")
    gated: bool = False
    biases: tuple[str, ...] = (*PROJECTIONS, *MLP)
    causal: bool = False
    score_width: float | None = None
    head_norm: bool = False
    pre_norm: bool = False
    result_norm: bool = False
    embedding_scale: bool = False
    embedding_norm: bool = True
    rms: bool = False
    from_one: bool = False
    norm_bias: bool = True
    norm_epsilon: float = float_key("layer_norm_eps", "layer_norm_epsilon", default=1e-12)
    shared_layers: bool = False
    dropout: float = float_key("hidden_dropout_prob", "dropout", "dropout_rate", default=0.1)
    hidden_dropout: bool = False
    final_dropout: bool = False
    attention_dropout: float = float_key("attention_probs_dropout_prob", "attention_dropout", default=0.1)
    initializer_range: float = float_key("initializer_range", default=0.02)
    pad_id: int = int_key("pad_token_id", default=0, least=-1, most=MOST_TOKENS)
    lora: LoraSettings = NONE
    product_dtype: str = FLOAT32

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Converts the contents of a `config.json` of a supported variant; `where` is the file, for messages."""
        check_supported(config, where, cls.supported)
        base = super().from_hugging_face(config, where)
        if base.position_table:
            positions = (base.positions or 0) - base.first_position
            if positions < 1:
                raise EndxError(f"{where}: max_position_embeddings must be larger than {base.first_position}")
            base = dataclasses.replace(base, positions=positions)
        if base.head_width is None and base.width % base.heads:
            raise EndxError(f"{where}: width {base.width} is not a multiple of its {base.heads} heads")
        if base.heads % base.groups:
            raise EndxError(
                f"{where}: {base.heads} attention heads are not a multiple of {base.groups} heads of keys and values"
            )
        return base

    def to_hugging_face(self) -> dict[str, Any]:
        """Returns the declared fields and rotary positions by the keys that BERT-like families have in transformers."""
        rope = {"rope_parameters": self.rope.to_hugging_face()} if self.rope else {}
        return super().to_hugging_face() | rope

    @property
    def first_position(self) -> int:
        """Row of the position table for a text's first token."""
        return self.pad_id + 1 if self.after_padding else 0

    @property
    def head(self) -> int:
        """Width Dh of a head."""
        return self.head_width or self.width // self.heads

    @property
    def groups(self) -> int:
        """Number K of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def table_width(self) -> int:
        """Columns of the token table."""
        return self.embedding_width or self.width

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """Kind of each layer."""
        return self.layer_kinds or (LayerKind(self.rope),) * self.layers

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Rotary position embeddings of the layers, each once."""
        return tuple(dict.fromkeys(kind.rope for kind in self.kinds if kind.rope))

    @property
    def kernel_init(self) -> nn.initializers.Initializer:
        """Initializer of linear layers."""
        return nn.initializers.normal(self.initializer_range)
