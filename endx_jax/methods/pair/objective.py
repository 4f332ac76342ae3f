"""Pair-classifier objective: each question with its right answer against the same question with wrong answers."""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.losses.pairs import pair_binary, pair_softmax
from endx_jax.methods.method import MethodSettings
from endx_jax.methods.objective import LossAndMetrics, Objective
from endx_jax.methods.pair.batches import PairBatch
from endx_jax.methods.pair.classifier import PairClassifier, Pooler
from endx_jax.models.dropout import fold
from endx_jax.settings import key

Array = jax.Array

LOSSES = {"softmax": pair_softmax, "binary": pair_binary}


@dataclasses.dataclass(frozen=True)
class PairSettings(MethodSettings):
    """`config.objective` of the method `pair`. docs/pair-classifier.md lists what the papers leave open."""

    takes_hard_negatives = True
    name: str = key("pair", "Name of the method.")
    loss: str = key("softmax", "Loss (Yu et al.: binary).", choices=LOSSES)
    negatives: int = key(
        3, "Wrong answers per question drawn from the batch, in addition to data.hard_negatives.", least=0
    )
    pooler: bool = key(True, "Apply a new linear map and tanh (BERT's pooler) before the classifier.")
    top: int = key(
        20,
        "Top answers of BM25 that are re-ranked per question in validation and report; 0: all answers.",
        least=0,
    )
    questions: int = key(200, "Number of questions ranked in validation, and in the report; 0: all.", least=0)


@dataclasses.dataclass(frozen=True)
class PairObjective(Objective):
    """Objective of a pair classifier trained on right and wrong pairs.

    Parameters are `{"dual_encoder": ..., "pair": ...}`: those of a shared tower and of the scoring head.

    Raises:
      EndxError: the towers cannot read pairs; see `PairClassifier`.
    """

    settings: PairSettings

    def __post_init__(self):
        _ = self.classifier

    @property
    def classifier(self) -> PairClassifier:
        """Classifier that scores pairs."""
        return PairClassifier(self.model, Pooler() if self.settings.pooler else None)

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Returns the initial parameters for a given tower's; `key` draws the head's."""
        return {"dual_encoder": dual_encoder, "pair": self.classifier.init(key, dual_encoder)}

    def loss(self, params: dict, embedded: Array, batch: PairBatch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch from the scores [B, 1 + K] of each question's candidates."""
        del params, keys, step
        return LOSSES[self.settings.loss](embedded, where=batch.where)

    def embed(self, params: dict, rows: tuple[PairBatch, Array]) -> Array:
        """Scores joined pairs, given as (batch, dropout keys [B]); returns [B, 1 + K]."""
        batch, keys = rows
        count = batch.where.shape[1]
        pairs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.pairs)
        pair_keys = jax.vmap(lambda n: fold(keys, n), out_axes=1)(jnp.arange(count)).reshape(-1)
        return self.classifier.score(params["dual_encoder"], params["pair"], pairs, pair_keys).reshape(-1, count)
