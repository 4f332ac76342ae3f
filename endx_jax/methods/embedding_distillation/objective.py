r"""Objective of embedding distillation: the distance between the towers' embeddings and a teacher's of the same texts.

LEAF (Vujanic and Rueckstiess 2025, arXiv 2509.12539) and the first stage of jina-embeddings-v5 (Akram et al. 2026,
arXiv 2602.15547) train small models in this way. Texts need no right answers: the pairs of the data are used as texts
alone, each side for the tower of that side. As the embeddings approximate the teacher's, the model can search indexes
that the teacher made.
"""

import dataclasses
from typing import Any, cast

import jax

from endx_jax.losses import embedding_regression
from endx_jax.methods.method import MethodSettings
from endx_jax.methods.objective import Embeddings, LossAndMetrics, Objective
from endx_jax.numerics import l2_normalize
from endx_jax.settings import key, require

Array = jax.Array
Pair = tuple[Array, Array]

COSINE, SQUARED = LOSSES = ("cosine", "squared")


@dataclasses.dataclass(frozen=True)
class EmbeddingDistillationSettings(MethodSettings):
    """`config.objective` of the method `embedding_distillation`."""

    needs_answers = False
    name: str = key("embedding_distillation", "Name of the method.")
    teacher: str = key(
        "", "Workdir, folder or name of the model that embeds the training texts once; its index can be searched later."
    )
    loss: str = key(
        COSINE,
        "Loss: one minus the cosine of both embeddings, or the mean square of the differences of their coordinates, "
        "which also teaches the norm.",
        choices=LOSSES,
    )

    @property
    def given_model(self) -> str:
        """Model whose embeddings batches hold."""
        return self.teacher


@dataclasses.dataclass(frozen=True)
class EmbeddingDistillationObjective(Objective):
    """Objective of towers that learn the embeddings of a teacher."""

    settings: EmbeddingDistillationSettings

    def __post_init__(self):
        require(
            bool(self.settings.teacher),
            "objective.teacher is empty: set it to the workdir, folder or name of the model to learn from",
        )

    def retrieval_loss(self, learned: dict, rows: tuple[Embeddings, dict[str, Any]], axis_name=None) -> LossAndMetrics:
        """Computes the mean distance of the embeddings; the metric is `teacher_cosine`."""
        del learned
        embedded, guide = rows[0], rows[1]["guide"]
        sides = (embedded.question, embedded.answer), (guide.question, guide.answer)
        ours, theirs = (pair[0].shape[1] for pair in sides)
        require(
            ours == theirs,
            f"the embeddings have {ours} numbers and those of objective.teacher={self.settings.teacher} {theirs}: set "
            f"model.projection={theirs}",
        )
        student, teacher = (cast(Pair, tuple(l2_normalize(side) for side in pair)) for pair in sides)
        # The squared distance of unit vectors is 2 - 2 cos, and a mean over E coordinates that divided by E.
        distance = ours / 2 * embedding_regression(student, teacher, axis_name=axis_name)[0]
        loss = distance if self.settings.loss == COSINE else embedding_regression(*sides, axis_name=axis_name)[0]
        return loss, {"teacher_cosine": 1 - distance}
