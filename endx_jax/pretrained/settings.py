"""Settings of the towers."""

import dataclasses

from endx_jax.models.config_keys import MOST_LAYERS, MOST_SIZE
from endx_jax.models.lora import DTYPES, LoraSettings
from endx_jax.models.pooling import POOLINGS, MultiHopSettings
from endx_jax.models.products import AUTO, FLOAT32, check_product_dtype
from endx_jax.models.recurrent import CELLS
from endx_jax.models.sharing import SHARINGS
from endx_jax.models.stack import REMATS
from endx_jax.models.token_embeddings import TokenSettings
from endx_jax.models.tower import FUNCTIONS
from endx_jax.settings import check_choice, check_range, key, require

NEW_ENCODERS = (*CELLS, "transformer")
NO_ENCODER = "none"
NO_PROMPT = "none"
MULTI_HOP = "multi_hop"
IDF = "idf"


@dataclasses.dataclass(frozen=True)
class NewEncoderSettings:
    """Settings of a new encoder, `config.model.new_encoder`; `model.encoder` chooses its kind."""

    layers: int = key(2, "Layers of a new encoder (ENDX: 2).")
    width: int = key(0, "Output width of a new recurrent encoder. 0: the width of the token embeddings.")
    heads: int = key(12, "Attention heads of a new transformer (ENDX: 12, of width 64).")
    bidirectional: bool = key(
        True, "Makes a new recurrent encoder bidirectional, with half its width in each direction (ENDX: unstated)."
    )

    def __post_init__(self):
        check_range("model.new_encoder.layers", self.layers, 1, MOST_LAYERS)
        check_range("model.new_encoder.width", self.width, 0, MOST_SIZE)
        check_range("model.new_encoder.heads", self.heads, 1, MOST_SIZE)


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Settings of the towers, `config.model`."""

    pretrained: str = key(
        "all-MiniLM-L6-v2",
        "Pretrained encoder: a folder with config.json and model.safetensors, a file of word vectors, a bundled "
        "name, or a hub id.",
    )
    answer_pretrained: str = key("", "Pretrained encoder of the answer tower. Empty: the same as `pretrained`.")
    sharing: str = key("sde", f"Parameter sharing between the towers: one of {', '.join(SHARINGS)} (Dong et al. 2022).")
    question_prompt: str = key(
        "", "Text put before every question, in training and inference. Empty: the folder's prompt; `none`: no text."
    )
    answer_prompt: str = key(
        "", "Text put before every answer, in training and inference. Empty: the folder's prompt; `none`: no text."
    )
    init_from: str = key(
        "", "Workdir of a finished run whose best parameters are the initial ones. Empty: pretrained parameters."
    )
    encoder: str = key(
        "",
        f"New encoder on the pretrained token embeddings: {', '.join(NEW_ENCODERS)}; or {NO_ENCODER}, which pools "
        "the token embeddings directly. Empty: the pretrained encoder.",
    )
    new_encoder: NewEncoderSettings = dataclasses.field(default_factory=NewEncoderSettings)
    pooling: str = key(
        "",
        f"Pooling over tokens: one of {', '.join((*POOLINGS, MULTI_HOP))}. Empty: the pretrained folder's, else mean.",
    )
    multi_hop: MultiHopSettings = dataclasses.field(default_factory=MultiHopSettings)
    tokens: TokenSettings = dataclasses.field(default_factory=TokenSettings)
    lora: LoraSettings = dataclasses.field(default_factory=LoraSettings)
    projection: int = key(
        0,
        "Width E of a linear projection after pooling; new unless the pretrained folder has one of this width. 0: "
        "the folder's projection, or none.",
    )
    projection_bias: bool = key(False, "Adds a bias to the projection. The folder's projection has its own.")
    projection_function: str = key(
        "identity", f"Function after the projection: {', '.join(FUNCTIONS)}. The folder's projection has its own."
    )
    layer_weights: tuple[float, ...] = key(
        (),
        "Weights of a mixture of the pretrained model's layers, which replaces the last layer: the token table, for "
        "BERT the input of the first layer, then each layer. They sum to one (RR).",
    )
    token_weights: str = key(
        "",
        f"Weights of tokens in pooling: {IDF}, ln(documents / documents with the token) over the training questions "
        "and answers (RR). Empty: equal weights.",
    )
    normalize: bool = key(
        True, "Scales embeddings to unit norm, so that similarity is the cosine. False: inner products."
    )
    dropout: float = key(-1.0, "Dropout rate of embeddings and sublayers, in [0, 1). -1: the rate in config.json.")
    attention_dropout: float = key(-1.0, "Dropout rate of attention weights, in [0, 1). -1: the rate in config.json.")
    dtype: str = key(
        AUTO, "Data type of the computation: float32, bfloat16, or auto (float32 on CPU, bfloat16 elsewhere)."
    )
    product_dtype: str = key(
        FLOAT32,
        "Data type of the factors of linear layers' products on a CPU: float32, bfloat16, or auto (bfloat16 if the CPU "
        "has instructions for it, AVX512-BF16 or AMX). Sums and all else remain float32. Accelerators ignore it.",
        auto=AUTO,
    )
    remat: str = key(
        AUTO,
        "Activations that each layer keeps for the backward pass; the others are computed again. none: keeps all; "
        "all_dots: results of matrix products; dots: results of products with weights; full: the layer's input. auto: "
        "the first of these that fits into memory (none on CPU).",
        changes_results=False,
    )

    @property
    def policy(self) -> str:
        """Rematerialisation policy of the layers that are built; `none` for `auto`, which training replaces."""
        return "none" if self.remat == AUTO else self.remat

    def __post_init__(self):
        check_choice("model.sharing", self.sharing, SHARINGS)
        check_choice("model.dtype", self.dtype, (AUTO, *DTYPES))
        check_product_dtype("model.product_dtype", self.product_dtype)
        check_choice("model.remat", self.remat, (AUTO, *REMATS))
        check_choice("model.encoder", self.encoder, ("", NO_ENCODER, *NEW_ENCODERS))
        check_choice("model.token_weights", self.token_weights, ("", IDF))
        check_choice("model.pooling", self.pooling, ("", *POOLINGS, MULTI_HOP))
        check_choice("model.projection_function", self.projection_function, FUNCTIONS)
        check_range("model.projection", self.projection, 0, MOST_SIZE)
        for name in ("dropout", "attention_dropout"):
            rate = getattr(self, name)
            require(rate == -1 or 0 <= rate < 1, f"model.{name} is {rate}; it must be in [0, 1), or -1")
        if self.layer_weights:
            total = sum(self.layer_weights)
            # RR's own mixture of three layers, 0.33 each, sums to 0.99.
            require(abs(total - 1) < 0.011, f"model.layer_weights sum to {total:g}; they must sum to one")
            require(
                not self.encoder, f"model.layer_weights mix pretrained layers, which encoder={self.encoder} has not"
            )
