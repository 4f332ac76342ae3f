"""Settings of the dual encoder's objective."""

import dataclasses
from typing import Any, Self

from endx_jax.data.batches.token_tables import Counts
from endx_jax.losses import Ceiling, Guide, Options, Prefixes
from endx_jax.losses.arguments import SAME_SIDE
from endx_jax.losses.distillation import DISTILLATIONS, KL
from endx_jax.losses.softmax import DIRECTIONS, JOINT
from endx_jax.methods.method import MethodSettings
from endx_jax.parallel.console import say
from endx_jax.settings import key, require

BACKWARD = "answer_to_question"
COSINES = 1.01  # largest absolute value of cosines, some of which rounding raises above 1
SOFTMAX, SIGMOID = LOSSES = ("softmax", "sigmoid")


@dataclasses.dataclass(frozen=True)
class ContrastiveSettings:
    """`config.objective.contrastive`: the loss over a batch, its negatives, and which of them are left out."""

    loss: str = key(SOFTMAX, "Loss over the batch (sigmoid: SigLIP, Zhai et al. 2023).", choices=LOSSES)
    bias: float = key(-10.0, "Initial value of the learned bias of the sigmoid loss (SigLIP: -10, for batches of 32k).")
    same_side: tuple[str, ...] = key(
        (),
        "Texts that are also compared with each other (GTE, Li et al. 2023, and Qwen3-Embedding, Zhang et al. 2025: "
        "both).",
        choices=SAME_SIDE,
    )
    ceiling: tuple[float, ...] = key(
        (),
        "(share, margin): leave out negatives that score above r + margin - (1 - share) |r|, where r is the right "
        "score; empty: none (Qwen3-Embedding: (1, 0.1); NV-Retriever, Moreira et al. 2024, in mining: (0.95, 0)).",
    )
    guide: str = key(
        "",
        "Workdir, folder or name of a model that embeds the training texts once, to leave out negatives that it scores "
        "above the right answer (GISTEmbed, Solatorio 2024); empty: none.",
    )
    guide_ceiling: tuple[float, float] = key((1.0, 0.0), "(share, margin) as in `ceiling`, for the guide's scores.")
    answer_frequencies: bool = key(
        False,
        "Subtract the logarithm of each answer's frequency in the training pairs, over the mean, from its logits "
        "(logQ correction of the softmax, Yi et al. 2019).",
    )

    def __post_init__(self):
        pair = len(self.ceiling) in (0, 2)
        require(pair, f"objective.contrastive.ceiling is {self.ceiling}; it must be (share, margin), or empty")
        require(
            not (self.answer_frequencies and self.loss == SIGMOID),
            "objective.contrastive.answer_frequencies corrects the softmax: set it to False, or loss=softmax",
        )

    def options(self, guide: Guide | None = None, log_q: Any = None, prefixes: Prefixes | None = None) -> Options:
        """Returns the options of `in_batch_softmax` and `in_batch_sigmoid` for a batch."""
        return Options(
            prefixes,
            self.same_side,
            Ceiling(*self.ceiling) if self.ceiling else None,
            guide,
            Ceiling(*self.guide_ceiling),
            log_q,
        )


@dataclasses.dataclass(frozen=True)
class DistillationSettings:
    """`config.objective.distillation`: a teacher's scores of right answers and hard negatives, from the data."""

    loss: str = key(
        "",
        "Loss between scores and a teacher's (Hofstätter et al. 2020; Ren et al. 2021); empty: none.",
        choices=DISTILLATIONS,
    )
    weight: float = key(1.0, "Weight of this loss.", least=0)
    contrastive_weight: float = key(1.0, "Weight of the loss over the batch beside it (Hofstätter et al.: 0).", least=0)
    temperature: float = key(
        0.0,
        "Divisor of the teacher's scores; for margin_mse it brings them to the range of ours. 0: automatic, "
        "objective.temperature for listwise_kl if all scores are from -1 to 1, as cosines are, else 1.",
        above=0,
        auto=0.0,
    )


@dataclasses.dataclass(frozen=True)
class DualSettings(MethodSettings):
    """`config.objective` of the method `dual`. `model.normalize` selects between inner product and cosine."""

    name: str = key("dual", "Name of the method.")
    temperature: float = key(
        0.05,
        "Divisor of the similarities; initial value if learn_temperature is set (t5x_retrieval: 0.01).",
        above=0,
    )
    learn_temperature: bool = key(False, "Train the logarithm of the temperature.")
    direction: str = key(
        "question_to_answer",
        "Direction of the softmax (Dong: question_to_answer; t5x_retrieval: sum; GTE: joint).",
        choices=(*DIRECTIONS, JOINT),
    )
    mask_false_negatives: bool = key(
        True, "Exclude equal texts and known positives from the negatives (papers: False)."
    )
    matryoshka_dims: tuple[int, ...] = key(
        (),
        "Widths of the prefixes of embeddings to train, such as (384, 192, 96); the whole embedding counts only if its "
        "width is among them; empty: the whole one alone (Kusupati et al. 2022).",
        least=1,
    )
    matryoshka_weights: tuple[float, ...] = key(
        (), "Weight of the loss of each of matryoshka_dims; empty: 1 (Kusupati et al.)."
    )
    contrastive: ContrastiveSettings = dataclasses.field(default_factory=ContrastiveSettings)
    distillation: DistillationSettings = dataclasses.field(default_factory=DistillationSettings)
    loss_tile: int = key(
        -1,
        "Rows of scores in memory at a time; 0: all, stored for the gradient; -1: automatic, all for small batches.",
        least=0,
        changes_results=False,
    )

    def __post_init__(self):
        require(
            self.contrastive.loss != SIGMOID or self.direction == DualSettings.direction,
            f"objective.direction is {self.direction!r}, which the sigmoid loss does not have: leave it, or set "
            "objective.contrastive.loss=softmax",
        )
        dims, weights = self.matryoshka_dims, self.matryoshka_weights
        require(len(set(dims)) == len(dims), f"objective.matryoshka_dims is {dims}; they must be distinct")
        require(
            len(weights) in (0, len(dims)),
            f"objective.matryoshka_weights has {len(weights)} weights for {len(dims)} matryoshka_dims",
        )

    def fitted(self, counts: Counts) -> Self:
        """Returns the settings with the temperature of the teacher's scores."""
        distillation = self.distillation
        if distillation.temperature:
            return self
        chosen = self.temperature if distillation.loss == KL and counts.largest_score <= COSINES else 1.0
        if distillation.loss:
            divided = f"the teacher's scores are divided by {chosen}"
            say(f"distillation: {divided}; set objective.distillation.temperature=... to change")
        return dataclasses.replace(self, distillation=dataclasses.replace(distillation, temperature=chosen))

    @property
    def takes_hard_negatives(self) -> bool:
        """True unless answers are compared with questions alone, and no teacher has scores of hard negatives."""
        return self.direction != BACKWARD or bool(self.distillation.loss)

    @property
    def given_model(self) -> str:
        """Model whose embeddings batches hold: the guide, or none."""
        return self.contrastive.guide

    def score_arrays(self, hard_negatives: int) -> int:
        """Returns the number of arrays of scores [B, B] of the dense loss with K hard negatives a question."""
        directions = 1 if self.direction in ("question_to_answer", BACKWARD) else 2
        return (directions + len(self.contrastive.same_side) + hard_negatives) * max(1, len(self.matryoshka_dims))

    def prefixes(self, normalize: bool) -> Prefixes:
        """Returns the prefixes of embeddings to train; `normalize` tells that embeddings have unit norm."""
        weights = self.matryoshka_weights or (1.0,) * len(self.matryoshka_dims)
        dims, weights = zip(*sorted(zip(self.matryoshka_dims, weights, strict=True)), strict=True)
        return Prefixes(dims, weights, normalize)
