"""Losses of squared distances, mined for hard pairs in the batch (RR, section 3.2)."""

import dataclasses

import flax.struct
import jax

from endx_jax.batch import Batch
from endx_jax.errors import EndxError
from endx_jax.losses.contrastive import DIRECTIONS
from endx_jax.losses.triplets import quadratic_regression_conditional, triplet_and_metrics
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.objectives.dual import UNCUT, tokens_of_rows
from endx_jax.parallel.execution import Execution
from endx_jax.settings import check, check_choice, key

Array = jax.Array

TRIPLET, QUADRATIC = LOSSES = ("triplet", "quadratic_regression_conditional")


@dataclasses.dataclass(frozen=True)
class TripletSettings:
    """Held in `config.objective`."""

    name: str = key("triplet", "the method")
    loss: str = key(TRIPLET, f"one of {', '.join(LOSSES)} (RR found the second no better)")
    margin: float = key(0.2, "m, of squared distances (RR: unstated; FaceNet: 0.2)")
    direction: str = key(
        "question_to_answer",
        f"of the triplets: one of {', '.join(DIRECTIONS)}; what comes first looks for its hardest pairs",
    )
    loss_tile: int = key(
        -1,
        "side of the tiles that hard pairs are mined in; 0: all pairs at once; -1: so while the batch is small",
        changes_results=False,
    )

    def __post_init__(self):
        check_choice("objective.loss", self.loss, LOSSES)
        check_choice("objective.direction", self.direction, DIRECTIONS)
        check(self.margin >= 0, f"objective.margin is {self.margin}; it must not be negative")
        check(self.loss_tile >= -1, f"objective.loss_tile is {self.loss_tile}; it must be positive, 0 or -1")


@flax.struct.dataclass
class PairEmbeddings:
    """What the towers make of B pairs.

    Attributes:
      question: [B, E].
      answer: [B, E].
    """

    question: Array
    answer: Array


@dataclasses.dataclass(frozen=True)
class TripletObjective:
    """A dual encoder trained by triplets; its parameters are `{"dual_encoder": ...}`.

    Attributes:
      model: the towers.
      settings: of the loss.
      execution: how the work of a step is cut up.
    """

    model: DualEncoder
    settings: TripletSettings
    execution: Execution = UNCUT

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """The objective's parameters around those of its dual encoder; nothing else is drawn."""
        del key
        return {"dual_encoder": dual_encoder}

    def prepare(self, execution: Execution, steps_per_epoch: float) -> "TripletObjective":
        """The same objective, as a run will compute it."""
        del steps_per_epoch
        return dataclasses.replace(self, execution=execution)

    def __call__(self, params: dict, batch: Batch, rng: Array, step: Array) -> tuple[Array, dict[str, Array]]:
        """The loss of one global batch, and what to log.

        Args:
          params: of this objective.
          batch: B pairs.
          rng: the run's key; with the step and the row it makes each example's dropout key.
          step: int32 scalar.

        Returns:
          The scalar loss; metrics `active_fraction` and, of triplets, `in_batch_accuracy` and `masked_fraction`: see
          `losses.triplets`.
        """
        keys = example_keys(rng, step, batch.question_id.shape[0])
        embeddings = self.execution.map_rows(self.embed, params, (batch, keys), cost=tokens_of_rows)
        ids = {"question_id": batch.question_id, "answer_id": batch.answer_id, "positive_ids": batch.positive_ids}
        return self.execution.reduce_rows(self._loss, (embeddings, ids))

    def embed(self, params: dict, rows: tuple[Batch, Array]) -> PairEmbeddings:
        """Embeds pairs, given with their dropout keys [B], each by itself."""
        batch, keys = rows
        if batch.hard_negatives is not None:
            raise EndxError("objective triplet mines its negatives in the batch: set data.hard_negatives to 0")
        towers = params["dual_encoder"]
        return PairEmbeddings(
            question=self.model.encode(towers, "question", batch.question, fold(keys, 0)),
            answer=self.model.encode(towers, "answer", batch.answer, fold(keys, 1)),
        )

    def _loss(self, rows: tuple[PairEmbeddings, dict[str, Array]], axis_name) -> tuple[Array, dict[str, Array]]:
        embeddings, ids = rows
        pair, margin = (embeddings.question, embeddings.answer), self.settings.margin
        if self.settings.loss == QUADRATIC:
            return quadratic_regression_conditional(*pair, margin=margin, axis_name=axis_name)
        return triplet_and_metrics(
            *pair,
            margin=margin,
            direction=self.settings.direction,
            tile=self.execution.loss_tile,
            axis_name=axis_name,
            **ids,
        )
