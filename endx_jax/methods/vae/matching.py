"""Dual encoder trained by matching pairs one by one: the Dual-GRUs of Yu et al. 2020 (section 3.1, Eq. 6)."""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.batch import Batch
from endx_jax.errors import EndxError
from endx_jax.losses.matching import MATCHINGS, draw_others, sampled_matching
from endx_jax.methods.dual import DualObjective, DualSettings, contrastive_collator, embed_by_guide, loss_arrays
from endx_jax.methods.dual.settings import ContrastiveSettings
from endx_jax.methods.method import Method
from endx_jax.methods.objective import Embeddings, LossAndMetrics, known_ids
from endx_jax.models.dropout import fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.settings import check_choice, key, require

Array = jax.Array

IN_BATCH = "inbatch"
MATCHES = (*MATCHINGS, IN_BATCH)


@dataclasses.dataclass(frozen=True)
class MatchingSettings(DualSettings):
    """`config.objective` of the method `matching`. Only `inbatch` uses temperature and direction. See docs/vae.md."""

    takes_hard_negatives = False
    name: str = key("matching", "Name of the method.")
    match: str = key("mse", "Loss of cosines: mse, bce (Yu et al. Eq. 6), or inbatch, the in-batch softmax.")
    negatives: int = key(
        2, "Wrong answers per question that mse and bce draw from the batch; 0: all others (unstated; a port draws 2)."
    )

    def __post_init__(self):
        super().__post_init__()
        check_choice("objective.match", self.match, MATCHES)
        require(self.negatives >= 0, f"objective.negatives is {self.negatives}; it must not be negative")
        softmax = self.matryoshka_dims or self.learn_temperature or self.contrastive != ContrastiveSettings()
        require(
            self.match == IN_BATCH or not softmax,
            f"objective.match={self.match} has no prefixes, learned temperature or objective.contrastive: leave them, "
            f"or set objective.match={IN_BATCH}",
        )


@dataclasses.dataclass(frozen=True)
class MatchingObjective(DualObjective):
    """Objective of a dual encoder trained by matching pairs. Parameters are those of the dual objective."""

    settings: MatchingSettings

    def __post_init__(self):
        check_cosines(self.model, self.settings)

    def loss(self, params: dict, embedded: Embeddings, batch: Batch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch, with the metrics of `match`."""
        del step
        return self.match(params, embedded, batch, keys)

    def match(self, params: dict, embeddings: Embeddings, batch: Batch, keys: Array) -> LossAndMetrics:
        """Computes the matching loss of a batch's embeddings and its metrics; `keys` [B] draw the wrong pairs.

        Raises:
          EndxError: the batch has hard negatives, and the loss draws its own.
        """
        settings = self.settings
        if settings.match == IN_BATCH:
            learned, rows = self.learned(params), (embeddings, loss_arrays(batch))
            loss, metrics = self.execution.reduce_rows(self.retrieval_loss, learned, rows)
            return loss, metrics | learned
        if embeddings.hard_negatives is not None:
            raise EndxError(
                f"objective.match={settings.match} draws its wrong answers from the batch: set data.hard_negatives=0, "
                f"or objective.match={IN_BATCH}"
            )
        places = jnp.arange(batch.question_id.shape[0])
        every_other = (places[:, None] + places[None, 1:]) % places.size
        drawn = draw_others(fold(keys, _DRAW), settings.negatives) if settings.negatives else every_other
        ids = known_ids(batch) if settings.mask_false_negatives else {}

        def sampled(_, rows, axis_name):
            question, answer, drawn, ids = rows
            return sampled_matching(question, answer, drawn, kind=settings.match, axis_name=axis_name, **ids)

        return self.execution.reduce_rows(sampled, None, (embeddings.question, embeddings.answer, drawn, ids))


def check_cosines(model: DualEncoder, settings: MatchingSettings) -> None:
    """Raises EndxError if the loss needs cosines and the towers do not normalize embeddings."""
    require(
        settings.match == IN_BATCH or model.question.normalize,
        f"objective.match={settings.match} needs cosines: set model.normalize=True or objective.match={IN_BATCH}",
    )


# Key number of the draws, distinct from the towers'.
_DRAW = 1 << 21


METHOD = Method("matching", MatchingSettings, MatchingObjective, collator=contrastive_collator, annotate=embed_by_guide)
