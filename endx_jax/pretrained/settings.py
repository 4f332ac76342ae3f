"""Settings of the towers."""

import dataclasses

from endx_jax.models.config_keys import MOST_LAYERS, MOST_SIZE
from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.pooling import POOLINGS, REDUCTIONS
from endx_jax.models.recurrent import CELLS
from endx_jax.models.residual import FUNCTIONS
from endx_jax.models.sharing import ALL_SHARINGS
from endx_jax.models.stack import REMATS
from endx_jax.settings import check, check_choice, check_range, key

DTYPES = ("float32", "bfloat16")
NEW_ENCODERS = (*CELLS, "transformer")
NO_ENCODER = "none"
MULTI_HOP = "multi_hop"
IDF = "idf"
HEAD_SIDES = ("both", *SIDES)


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Settings of the towers, `config.model`."""

    pretrained: str = key(
        "all-MiniLM-L6-v2",
        "Pretrained encoder: a folder with config.json and model.safetensors, a file of word vectors, a bundled "
        "name, or a hub id.",
    )
    answer_pretrained: str = key("", "Pretrained encoder of the answer tower. Empty: the same as `pretrained`.")
    tokenizer: str = key("", "Folder of another tokenizer. Empty: the pretrained model's.")
    sharing: str = key(
        "sde",
        f"Parameter sharing between the towers: one of {', '.join(ALL_SHARINGS)} (Dong et al. 2022; residual: RR).",
    )
    question_prompt: str = key("", "Text put before every question, in training and inference.")
    answer_prompt: str = key("", "Text put before every answer, in training and inference.")
    init_from: str = key(
        "", "Workdir of a finished run whose best parameters are the initial ones. Empty: pretrained parameters."
    )
    encoder: str = key(
        "",
        f"New encoder on the pretrained token embeddings: {', '.join(NEW_ENCODERS)}; or {NO_ENCODER}, which pools "
        "the token embeddings directly. Empty: the pretrained encoder.",
    )
    encoder_layers: int = key(2, "Layers of a new encoder (ENDX: 2).")
    encoder_width: int = key(0, "Output width of a new recurrent encoder. 0: the width of the token embeddings.")
    encoder_heads: int = key(12, "Attention heads of a new transformer (ENDX: 12, of width 64).")
    bidirectional: bool = key(
        True, "Makes a new recurrent encoder bidirectional, with half its width in each direction (ENDX: unstated)."
    )
    pooling: str = key(
        "",
        f"Pooling over tokens: one of {', '.join((*POOLINGS, MULTI_HOP))}. Empty: the pretrained folder's, else mean.",
    )
    hops: int = key(10, "Hops of multi_hop pooling, r (Lin et al. 2017: 30; ENDX: unstated).")
    attention_width: int = key(256, "Hidden width of multi_hop pooling, d_a (Lin et al. 2017: 350; ENDX: unstated).")
    hop_reduction: str = key("mean", f"Reduction over hops: {', '.join(REDUCTIONS)} (Lin et al. 2017: flatten).")
    projection: int = key(
        0,
        "Width E of a linear projection after pooling; new unless the pretrained folder has one of this width. 0: "
        "the folder's projection, or none.",
    )
    layer_weights: tuple[float, ...] = key(
        (),
        "Weights of a mixture of the pretrained model's layers, which replaces the last layer: the token table, for "
        "BERT the input of the first layer, then each layer. They sum to one (RR). `endx papers layers` finds them.",
    )
    token_weights: str = key(
        "",
        f"Weights of tokens in pooling: {IDF}, ln(documents / documents with the token) over the training questions "
        "and answers (RR). Empty: equal weights.",
    )
    head: str = key(
        "",
        f"Residual heads on the embedding, in order, joined by + (RR): {', '.join(FUNCTIONS)}. Empty: none. With "
        "sharing=residual only the heads are trained.",
    )
    head_sides: str = key("both", f"Towers with a head: {', '.join(HEAD_SIDES)}. The other tower stays as it is.")
    head_width: int = key(1024, "Hidden width of fcrr (RR: unstated).")
    head_filters: int = key(16, "Filters of convrr, of width 5 and stride 2 (RR: 1024).")
    head_scale: float = key(1.0, "Factor of a head's output before it is added (RR: 1).")
    head_dropout: float = key(0.1, "Dropout rate of a head's hidden activations, in [0, 1) (RR: 0.1).")
    normalize: bool = key(
        True, "Scales embeddings to unit norm, so that similarity is the cosine. False: inner products."
    )
    dropout: float = key(-1.0, "Dropout rate of embeddings and sublayers, in [0, 1). -1: the rate in config.json.")
    attention_dropout: float = key(-1.0, "Dropout rate of attention weights, in [0, 1). -1: the rate in config.json.")
    dtype: str = key(
        "auto", "Data type of the computation: float32, bfloat16, or auto (float32 on CPU, bfloat16 elsewhere)."
    )
    remat: str = key(
        "none",
        "Activations that each layer keeps for the backward pass; the others are computed again. none: keeps all; "
        "all_dots: results of matrix products; dots: results of products with weights; full: the layer's input.",
        changes_results=False,
        older={False: "none", True: "full"},
    )
    scan_layers: bool = key(
        False, "Stacks the layers and runs them as one scan, which compiles faster for deep encoders."
    )

    def __post_init__(self):
        check_choice("model.sharing", self.sharing, ALL_SHARINGS)
        check_choice("model.dtype", self.dtype, ("auto", *DTYPES))
        check_choice("model.remat", self.remat, REMATS)
        check_choice("model.encoder", self.encoder, ("", NO_ENCODER, *NEW_ENCODERS))
        check_choice("model.token_weights", self.token_weights, ("", IDF))
        check_choice("model.pooling", self.pooling, ("", *POOLINGS, MULTI_HOP))
        check_choice("model.hop_reduction", self.hop_reduction, REDUCTIONS)
        for name in ("projection", "encoder_width"):
            check_range(f"model.{name}", getattr(self, name), 0, MOST_SIZE)
        check_range("model.encoder_layers", self.encoder_layers, 1, MOST_LAYERS)
        for name in ("encoder_heads", "hops", "attention_width"):
            check_range(f"model.{name}", getattr(self, name), 1, MOST_SIZE)
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
        """Names of the heads, in order."""
        return tuple(self.head.split("+")) if self.head else ()

    def _check_heads(self) -> None:
        check_choice("model.head_sides", self.head_sides, HEAD_SIDES)
        for name in self.heads:
            check_choice("model.head", name, FUNCTIONS)
        check(len(set(self.heads)) == len(self.heads), f"model.head is {self.head}: a head can be there once")
        for name in ("head_width", "head_filters"):
            check_range(f"model.{name}", getattr(self, name), 1, MOST_SIZE)
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
