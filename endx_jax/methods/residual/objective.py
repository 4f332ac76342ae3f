"""Objective with losses of squared distances and in-batch mining of hard pairs (RR, section 3.2)."""

import dataclasses
from typing import Any

from endx_jax.losses.softmax import DIRECTIONS
from endx_jax.losses.triplets import quadratic_regression_conditional, triplet
from endx_jax.methods.method import MethodSettings
from endx_jax.methods.objective import Embeddings, LossAndMetrics, Objective
from endx_jax.models.heads import HeadSettings
from endx_jax.settings import key, require

TRIPLET, QUADRATIC = LOSSES = ("triplet", "quadratic_regression_conditional")


@dataclasses.dataclass(frozen=True)
class ResidualSettings(MethodSettings):
    """`config.objective` of the method `residual`."""

    name: str = key("residual", "Name of the method.")
    head: HeadSettings = dataclasses.field(default_factory=HeadSettings)
    loss: str = key(TRIPLET, "Loss (RR found the second no better).", choices=LOSSES)
    margin: float = key(0.2, "Margin between squared distances (RR: unstated; FaceNet: 0.2).", least=0)
    direction: str = key(
        "question_to_answer", "Direction of the triplets; the first side is the anchor.", choices=DIRECTIONS
    )
    loss_tile: int = key(
        -1,
        "Rows of distances in memory at a time, in which hard pairs are mined; 0: all; -1: automatic, all if small.",
        least=0,
        changes_results=False,
    )

    def check_model(self, model: Any) -> None:
        """Raises EndxError for adapters, which the frozen towers would not train."""
        super().check_model(model)
        require(not model.lora.rank, f"objective.name={self.name} trains heads on frozen towers: set model.lora.rank=0")


@dataclasses.dataclass(frozen=True)
class ResidualObjective(Objective):
    """Objective of a dual encoder, or of heads on a frozen one, trained by triplets."""

    settings: ResidualSettings

    def __post_init__(self):
        require(self.model.question.normalize, "objective.name=residual makes unit vectors: leave model.normalize on")

    def retrieval_loss(self, learned: dict, rows: tuple[Embeddings, dict[str, Any]], axis_name=None) -> LossAndMetrics:
        """Computes the loss from embeddings and `loss_arrays`.

        The metrics are `active_fraction` and, of triplets, `in_batch_accuracy` and `masked_fraction`: see
        `losses.triplets`.
        """
        del learned
        embedded, ids = rows
        require(
            embedded.hard_negatives is None,
            "objective.name=residual mines its negatives in the batch: set data.hard_negatives to 0",
        )
        pair, margin = (embedded.question, embedded.answer), self.settings.margin
        if self.settings.loss == QUADRATIC:
            return quadratic_regression_conditional(*pair, margin=margin, axis_name=axis_name)
        return triplet(
            *pair,
            margin=margin,
            direction=self.settings.direction,
            tile=self.execution.loss_tile,
            axis_name=axis_name,
            **ids,
        )
