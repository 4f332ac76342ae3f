"""Objective of the pair classifier: a question with its answer against the same question with wrong ones."""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.losses.pairs import pair_binary, pair_softmax
from endx_jax.methods.objective import LossAndMetrics, Objective
from endx_jax.methods.pair.batches import PairBatch
from endx_jax.methods.pair.classifier import PairClassifier
from endx_jax.models.dropout import fold
from endx_jax.settings import check, check_choice, key

Array = jax.Array

LOSSES = {"softmax": pair_softmax, "binary": pair_binary}


@dataclasses.dataclass(frozen=True)
class PairSettings:
    """Settings of the method, `config.objective`; docs/pair-classifier.md has choices that the papers leave open."""

    name: str = key("pair", "Name of the method.")
    loss: str = key("softmax", f"Loss: one of {', '.join(LOSSES)} (Yu et al.: a binary classifier).")
    negatives: int = key(
        3, "Other answers of the batch that each question is joined with, besides `data.hard_negatives`."
    )
    pooler: bool = key(True, "Adds BERT's pooler (a new linear map and tanh) before the classifier.")
    top: int = key(20, "Best answers of BM25 per question that are re-ranked in validation and report. 0: all.")
    questions: int = key(200, "Questions that are ranked in validation, and in the report. 0: all.")

    def __post_init__(self):
        check_choice("objective.loss", self.loss, LOSSES)
        for name in ("negatives", "top", "questions"):
            check(getattr(self, name) >= 0, f"objective.{name} is {getattr(self, name)}; it must not be negative")


@dataclasses.dataclass(frozen=True)
class PairObjective(Objective):
    """Pair classifier trained on right and wrong pairs.

    Parameters are `{"dual_encoder": ..., "pair": ...}`: those of a Siamese tower, which reads the pairs, and of the
    classifier.

    Raises:
      EndxError: the towers can't read pairs: see `PairClassifier`.
    """

    settings: PairSettings

    def __post_init__(self):
        _ = self.classifier

    @property
    def classifier(self) -> PairClassifier:
        """Classifier that scores pairs."""
        return PairClassifier(self.model, self.settings.pooler)

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Adds the classifier's parameters, drawn from `key`, to those of the tower."""
        return {"dual_encoder": dual_encoder, "pair": self.classifier.init(key, dual_encoder)}

    def loss(self, params: dict, embedded: Array, batch: PairBatch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch: B questions, each with 1 + K scores [B, 1 + K] of its candidates."""
        del params, keys, step
        return LOSSES[self.settings.loss](embedded, where=batch.counts)

    def embed(self, params: dict, rows: tuple[PairBatch, Array]) -> Array:
        """Computes the scores [B, 1 + K] of joined pairs, given their dropout keys [B]."""
        batch, keys = rows
        count = batch.counts.shape[1]
        pairs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.pairs)
        own = jax.vmap(lambda n: fold(keys, n), out_axes=1)(jnp.arange(count)).reshape(-1)
        return self.classifier.score(params["dual_encoder"], params["pair"], pairs, own).reshape(-1, count)
