"""Dual encoder trained by matching pairs one by one: the Dual-GRUs of Yu et al. 2020 (section 3.1, Eq. 6)."""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.batch import Batch
from endx_jax.errors import EndxError
from endx_jax.losses.matching import MATCHINGS, draw_others, sampled_matching
from endx_jax.methods.dual import DualObjective, DualSettings, contrastive_collator, embed_by_guide
from endx_jax.methods.dual.settings import ContrastiveSettings
from endx_jax.methods.method import Method
from endx_jax.methods.objective import Embeddings, LossAndMetrics, known_ids
from endx_jax.models.dropout import fold
from endx_jax.settings import key, require

Array = jax.Array

IN_BATCH = "inbatch"
MATCHES = (*MATCHINGS, IN_BATCH)


@dataclasses.dataclass(frozen=True)
class MatchingSettings(DualSettings):
    """`config.objective` of the method `matching`. Only `inbatch` uses temperature and direction. See docs/vae.md."""

    takes_hard_negatives = False
    name: str = key("matching", "Name of the method.")
    match: str = key("mse", "Loss of cosines (Yu et al. Eq. 6: bce); inbatch: the in-batch softmax.", choices=MATCHES)
    negatives: int = key(
        2,
        "Wrong answers per question that mse and bce draw from the batch; 0: all others (unstated; a port draws 2).",
        least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        further = self.matryoshka_dims or self.learn_temperature or self.distillation.loss
        require(
            self.match == IN_BATCH or not (further or self.contrastive != ContrastiveSettings()),
            f"objective.match={self.match} does not support objective.matryoshka_dims, learn_temperature, "
            f"contrastive and distillation: leave these at their defaults, or set objective.match={IN_BATCH}",
        )


@dataclasses.dataclass(frozen=True)
class MatchingObjective(DualObjective):
    """Objective of a dual encoder trained by matching pairs. Parameters are those of the dual objective."""

    settings: MatchingSettings

    def __post_init__(self):
        settings = self.settings
        require(
            settings.match == IN_BATCH or self.model.question.normalize,
            f"objective.match={settings.match} needs cosines: set model.normalize=True or objective.match={IN_BATCH}",
        )

    def loss(self, params: dict, embedded: Embeddings, batch: Batch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss `match` of one global batch and its metrics; `keys` [B] draw the wrong pairs.

        Raises:
          EndxError: the batch has hard negatives, and the loss draws its own.
        """
        settings = self.settings
        if settings.match == IN_BATCH:
            return super().loss(params, embedded, batch, keys, step)
        if embedded.hard_negatives is not None:
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

        return self.execution.reduce_rows(sampled, None, (embedded.question, embedded.answer, drawn, ids))


# Key number of the draws, distinct from the towers'.
_DRAW = 1 << 21


METHOD = Method("matching", MatchingSettings, MatchingObjective, collator=contrastive_collator, annotate=embed_by_guide)
