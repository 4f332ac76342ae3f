"""Settings of the towers."""

import dataclasses

from endx_jax.models.dual_encoder import SIDES
from endx_jax.models.pooling import POOLINGS, REDUCTIONS
from endx_jax.models.recurrent import CELLS
from endx_jax.models.residual import FUNCTIONS
from endx_jax.models.sharing import ALL_SHARINGS
from endx_jax.models.stack import REMATS
from endx_jax.settings import check, check_choice, key

DTYPES = ("float32", "bfloat16")
NEW_ENCODERS = (*CELLS, "transformer")
NO_ENCODER = "none"
MULTI_HOP = "multi_hop"
IDF = "idf"
HEAD_SIDES = ("both", *SIDES)


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
    remat: str = key(
        "none",
        "what each layer keeps for the backward pass, where the rest is computed again: none: it keeps all; all_dots: "
        "the results of matrix products; dots: of products with weights, and attention is computed again; full: the "
        "layer's input alone",
        changes_results=False,
        older={False: "none", True: "full"},
    )
    scan_layers: bool = key(False, "hold layers stacked and run them as one scan: compiles faster when they are many")

    def __post_init__(self):
        check_choice("model.sharing", self.sharing, ALL_SHARINGS)
        check_choice("model.dtype", self.dtype, ("auto", *DTYPES))
        check_choice("model.remat", self.remat, REMATS)
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
