"""The pair classifier's objective: a question with its own answer against the same question with wrong ones."""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.batch import PairBatch
from endx_jax.losses.pairs import pair_binary, pair_softmax
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.pair_classifier import PairClassifier
from endx_jax.objectives.dual import UNCUT
from endx_jax.parallel.execution import Execution
from endx_jax.settings import check, check_choice, key

Array = jax.Array

LOSSES = {"softmax": pair_softmax, "binary": pair_binary}


@dataclasses.dataclass(frozen=True)
class PairSettings:
    """Held in `config.objective`. docs/pair-classifier.md says what the papers leave open."""

    name: str = key("pair", "the method")
    loss: str = key("softmax", f"one of {', '.join(LOSSES)} (Yu et al.: a binary classifier)")
    negatives: int = key(3, "answers of the batch that each question is joined with, beside data.hard_negatives")
    pooler: bool = key(True, "whether BERT's linear map and tanh stand before the classifier, newly drawn")
    top: int = key(20, "answers of the first stage, BM25, that are scored a question in validation and report; 0: all")
    questions: int = key(200, "questions that are ranked in validation, and as many in the report; 0: all")

    def __post_init__(self):
        check_choice("objective.loss", self.loss, LOSSES)
        for name in ("negatives", "top", "questions"):
            check(getattr(self, name) >= 0, f"objective.{name} is {getattr(self, name)}; it must not be negative")


@dataclasses.dataclass(frozen=True)
class PairObjective:
    """A pair classifier trained on right and wrong pairs.

    Parameters are `{"dual_encoder": ..., "pair": ...}`: a Siamese tower's, which reads the pairs, and the head's.

    Attributes:
      model: the towers.
      settings: of the loss.
      execution: how the work of a step is cut up.

    Raises:
      EndxError: the towers can't read pairs: see `PairClassifier`.
    """

    model: DualEncoder
    settings: PairSettings
    execution: Execution = UNCUT

    def __post_init__(self):
        _ = self.classifier

    @property
    def classifier(self) -> PairClassifier:
        """What scores pairs."""
        return PairClassifier(self.model, self.settings.pooler)

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """The objective's parameters around those of its tower; `key` draws the head's."""
        return {"dual_encoder": dual_encoder, "pair": self.classifier.init(key, dual_encoder)}

    def prepare(self, execution: Execution, steps_per_epoch: float) -> "PairObjective":
        """The same objective, as a run will compute it."""
        del steps_per_epoch
        return dataclasses.replace(self, execution=execution)

    def __call__(self, params: dict, batch: PairBatch, rng: Array, step: Array) -> tuple[Array, dict[str, Array]]:
        """The loss of one global batch, and what to log.

        Args:
          params: of this objective.
          batch: B questions, each with 1 + K candidates.
          rng: the run's key; with the step and the row it makes each question's dropout key.
          step: int32 scalar.

        Returns:
          The scalar loss; metrics `pair_accuracy`, the share of the questions whose right answer scores higher than
          all its wrong ones, and `negatives`, the mean number of those.
        """
        keys = example_keys(rng, step, batch.counts.shape[0])
        scores = self.execution.map_rows(self.embed, params, (batch, keys), cost=tokens_of_rows)
        wrong = jnp.max(jnp.where(batch.counts, scores, -jnp.inf)[:, 1:], axis=1, initial=-jnp.inf)
        metrics = {
            "pair_accuracy": jnp.mean(scores[:, 0] > wrong),
            "negatives": jnp.mean(jnp.sum(batch.counts, axis=1) - 1.0),
        }
        return LOSSES[self.settings.loss](scores, batch.counts), metrics

    def embed(self, params: dict, rows: tuple[PairBatch, Array]) -> Array:
        """Scores [B, 1 + K] of joined pairs, given with their dropout keys [B], each by itself."""
        batch, keys = rows
        count = batch.counts.shape[1]
        pairs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.pairs)
        own = jax.vmap(lambda n: fold(keys, n), out_axes=1)(jnp.arange(count)).reshape(-1)
        return self.classifier.score(params["dual_encoder"], params["pair"], pairs, own).reshape(-1, count)


def tokens_of_rows(rows: tuple[PairBatch, Array]) -> Array:
    """The real tokens of each question's pairs, int32 [B]."""
    batch, _ = rows
    return jnp.sum(batch.pairs.lengths, axis=1)
