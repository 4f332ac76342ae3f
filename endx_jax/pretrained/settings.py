"""Settings of the towers."""

import collections
import dataclasses

from endx_jax.models.config_keys import MOST_LAYERS, MOST_SIZE
from endx_jax.models.lora import DTYPES, LoraSettings
from endx_jax.models.pooling import POOLINGS, MultiHopSettings
from endx_jax.models.products import AUTO, FLOAT32, PRODUCT_DTYPES
from endx_jax.models.recurrent import CELLS
from endx_jax.models.sharing import SHARINGS
from endx_jax.models.stack import REMATS
from endx_jax.models.token_embeddings import TokenSettings
from endx_jax.models.tower import FUNCTIONS
from endx_jax.settings import key, require

NEW_ENCODERS = (*CELLS, "transformer")
NO_ENCODER = "none"
NO_PROMPT = "none"
MULTI_HOP = "multi_hop"
IDF = "idf"


@dataclasses.dataclass(frozen=True)
class NewEncoderSettings:
    """Settings of a new encoder, `config.model.new_encoder`; `model.encoder` chooses its kind."""

    layers: int = key(2, "Layers of a new encoder (ENDX: 2).", least=1, most=MOST_LAYERS)
    width: int = key(
        0, "Output width of a new recurrent encoder. 0: the width of the token embeddings.", least=0, most=MOST_SIZE
    )
    heads: int = key(12, "Attention heads of a new transformer (ENDX: 12, of width 64).", least=1, most=MOST_SIZE)
    bidirectional: bool = key(
        True, "Makes a new recurrent encoder bidirectional, with half its width in each direction (ENDX: unstated)."
    )


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Settings of the towers, `config.model`."""

    pretrained: str = key(
        "all-MiniLM-L6-v2",
        "Pretrained encoder: a folder with config.json and model.safetensors, a file of word vectors, a bundled "
        "name, or a hub id.",
    )
    answer_pretrained: str = key(
        "", "Pretrained encoder of the answer tower, with a `sharing` such as ade. Empty: the same as `pretrained`."
    )
    sharing: str = key("sde", "Parameter sharing between the towers (Dong et al. 2022).", choices=SHARINGS)
    question_prompt: str = key(
        "", "Text put before every question, in training and inference. Empty: the folder's prompt; `none`: no text."
    )
    answer_prompt: str = key(
        "", "Text put before every answer, in training and inference. Empty: the folder's prompt; `none`: no text."
    )
    init_from: str = key(
        "", "Workdir of a finished run whose model has the initial parameters. Empty: pretrained parameters."
    )
    encoder: str = key(
        "",
        f"New encoder on the pretrained token embeddings, or {NO_ENCODER}, which pools the token embeddings directly. "
        "Empty: the pretrained encoder.",
        choices=(NO_ENCODER, *NEW_ENCODERS),
    )
    new_encoder: NewEncoderSettings = dataclasses.field(default_factory=NewEncoderSettings)
    pooling: str = key(
        "",
        "Pooling over tokens. Empty: the pretrained folder's, else mean.",
        choices=collections.ChainMap({MULTI_HOP: None}, POOLINGS),  # type: ignore[arg-type]
    )
    multi_hop: MultiHopSettings = dataclasses.field(default_factory=MultiHopSettings)
    tokens: TokenSettings = dataclasses.field(default_factory=TokenSettings)
    lora: LoraSettings = dataclasses.field(default_factory=LoraSettings)
    projection: int = key(
        0,
        "Width E of a linear projection after pooling; new unless the pretrained folder has one of this width. 0: "
        "the folder's projection, or none.",
        least=0,
        most=MOST_SIZE,
    )
    projection_bias: bool = key(False, "Adds a bias to the projection. The folder's projection has its own.")
    projection_function: str = key(
        "identity", "Function after the projection. The folder's projection has its own.", choices=FUNCTIONS
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
        choices=(IDF,),
    )
    normalize: bool = key(
        True, "Scales embeddings to unit norm, so that similarity is the cosine. False: inner products."
    )
    dropout: float = key(
        -1.0, "Dropout rate of embeddings and sublayers, in [0, 1). -1: the rate in config.json.", least=0, below=1
    )
    attention_dropout: float = key(
        -1.0, "Dropout rate of attention weights, in [0, 1). -1: the rate in config.json.", least=0, below=1
    )
    dtype: str = key(AUTO, "Data type of the computation; auto: float32 on CPU, bfloat16 elsewhere.", choices=DTYPES)
    product_dtype: str = key(
        FLOAT32,
        "Data type of the factors of linear layers' products on a CPU; auto: bfloat16 if the CPU has instructions for "
        "it, AVX512-BF16 or AMX. Sums and all else remain float32. Accelerators ignore it.",
        choices=PRODUCT_DTYPES,
        auto=AUTO,
    )
    remat: str = key(
        AUTO,
        "Activations that each layer keeps for the backward pass; the others are computed again. none: keeps all; "
        "all_dots: results of matrix products; dots: results of products with weights; full: the layer's input. auto: "
        "the first of these that fits into memory (none on CPU).",
        choices=REMATS,
        changes_results=False,
    )

    @property
    def policy(self) -> str:
        """Rematerialisation policy of the layers that are built; `none` for `auto`, which training replaces."""
        return "none" if self.remat == AUTO else self.remat

    def __post_init__(self):
        if self.layer_weights:
            total = sum(self.layer_weights)
            # RR's own mixture of three layers, 0.33 each, sums to 0.99.
            require(abs(total - 1) < 0.011, f"model.layer_weights sum to {total:g}; they must sum to one")
            require(
                not self.encoder, f"model.layer_weights mix pretrained layers, which encoder={self.encoder} has not"
            )
