"""Batches with what a contrastive loss needs beside texts: embeddings of a guide, frequencies, scores of a teacher."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from endx_jax.batch import Batch
from endx_jax.data.batches.collator import BatchSide, Collator, RowsOfProcess
from endx_jax.data.batches.ragged import Ragged
from endx_jax.data.batches.sampler import Drawn, Sampler, sampler_options
from endx_jax.data.batches.token_tables import Pairs
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.errors import EndxError, counted
from endx_jax.inference import load
from endx_jax.inference.vector_cache import VectorCache
from endx_jax.losses import Guide
from endx_jax.methods.dual.settings import BACKWARD, DualSettings
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.parallel.agreement import check_equal
from endx_jax.parallel.console import say
from endx_jax.pretrained.published import is_known, outline
from endx_jax.settings import require

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class ContrastiveCollator(Collator):
    """Makes batches with further arrays of a contrastive loss, in `extra`.

    These are `guide`, the embeddings of the batch's texts by the guide, if the pairs have one; `log_q` [B], if given;
    and `teacher` [B, 1 + K], a teacher's scores of the answers and hard negatives, NaN where unknown.

    Attributes:
      log_q: float32 [N], logarithm of each answer's frequency in the training pairs over the mean; None if not used.
      distils: true for batches with the teacher's scores of the pairs.
    """

    log_q: np.ndarray | None = None
    distils: bool = False

    def batch(
        self, drawn: Drawn, sides: Mapping[str, BatchSide], texts: Mapping[str, Any], rows: RowsOfProcess
    ) -> Batch:
        """Returns this process's rows of a batch, with NumPy leaves."""
        batch, extra = super().batch(drawn, sides, texts, rows), dict[str, Any]()
        if self.pairs.guide is not None:
            extra["guide"] = _guide_of(self.pairs.guide, batch)
        if self.log_q is not None:
            extra["log_q"] = self.log_q[batch.answer_id]
        if self.distils and self.pairs.scores is not None:
            extra["teacher"] = self._teacher(batch, *self.pairs.scores)
        return dataclasses.replace(batch, extra=extra)

    def _teacher(self, batch: Batch, right: Ragged, wrong: Ragged) -> np.ndarray:
        question = np.asarray(batch.question_id)
        right_scores = _scores_of(np.asarray(batch.answer_id)[:, None], question, self.pairs.positives, right)
        hard = _scores_of(np.asarray(batch.hard_negative_ids), question, self.pairs.hard_negatives, wrong)
        return np.concatenate([right_scores, hard], axis=1)


def contrastive_collator(pairs: Pairs, settings: DualSettings, hard_negatives: int) -> Collator:
    """Returns the collator of a contrastive loss: `Method.collator`.

    Raises:
      EndxError: a loss needs scores or counts that the data or the batches do not have, or has no use for them.
    """
    distils, log_q = settings.distillation.loss, None
    if distils and not hard_negatives:
        raise EndxError(f"objective.distillation.loss={distils} compares hard negatives: set data.hard_negatives")
    if distils and pairs.scores is None:
        raise EndxError(
            f"objective.distillation.loss={distils} needs a teacher's scores, but the data has none: "
            "write them with `endx mine --score-with`"
        )
    if settings.direction == BACKWARD:
        require(
            not hard_negatives or bool(distils),
            f"objective.direction={BACKWARD} compares no hard negatives: set data.hard_negatives=0",
        )
        require(
            not settings.contrastive.answer_frequencies or "answers" in settings.contrastive.same_side,
            f"objective.direction={BACKWARD} compares no answers: set objective.contrastive.answer_frequencies=False",
        )
    if settings.contrastive.answer_frequencies:
        require(
            not pairs.sizes,
            "objective.contrastive.answer_frequencies counts pairs, and data.mixture draws them by weights: set it to "
            "False, or leave data.mixture empty",
        )
        counts = np.bincount(pairs.index[:, 1], minlength=len(pairs.answers))
        log_q = np.log(np.maximum(counts, 1) / counts[counts > 0].mean()).astype(np.float32)
    if pairs.guide is None and log_q is None and not distils:
        return Collator(pairs)
    return ContrastiveCollator(pairs, log_q, bool(distils))


def _guide_of(embedded: Mapping[str, Any], batch: Batch) -> Guide:
    """Returns the guide's embeddings of the texts of a batch."""
    questions, answers = (embedded[side] for side in SIDES)
    hard = batch.hard_negative_ids
    return Guide(
        questions[batch.question_id],
        answers[batch.answer_id],
        None if hard is None else answers[np.maximum(hard, 0)],  # missing ones are ignored
    )


def _scores_of(candidates: np.ndarray, question: np.ndarray, listed: Ragged, scores: Ragged) -> np.ndarray:
    """Looks up the teacher's scores, float32 [B, K], of candidates; NaN for those that their question does not list."""
    places = listed.find(question, candidates)
    values = np.full(places.shape, np.nan, np.float32)
    values[places >= 0] = scores.values[places[places >= 0]]
    return values


@dataclasses.dataclass(frozen=True)
class DrawnRows:
    """Embeddings of those rows of a table that a run draws, in ascending order; other rows have some of them."""

    rows: np.ndarray
    embeddings: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return self.embeddings[np.searchsorted(self.rows[:-1], rows)]


def rows_drawn(pairs: Pairs, settings: Any) -> dict[str, np.ndarray]:
    """Returns by side the rows of its texts that the steps of a run draw, ascending; all if they draw an epoch."""
    steps = settings.train.total_steps(len(pairs))
    if steps * settings.train.global_batch_size >= len(pairs):
        return {"question": np.arange(len(pairs.questions)), "answer": np.arange(len(pairs.answers))}
    drawn = [*map(Sampler(pairs, **sampler_options(settings)), range(steps))]
    answers = np.unique(np.concatenate([ids for batch in drawn for ids in (batch.answer_id, batch.hard_id.ravel())]))
    return {"question": np.unique([batch.question_id for batch in drawn]), "answer": answers[answers >= 0]}


def embed_by_guide(
    pairs: Pairs, records: RetrievalSet | None, settings: Any, mesh: Mesh, *, as_teacher: bool = False
) -> Pairs:
    """Returns pairs with the guide's embeddings of all texts that the run draws, computed once: `Method.annotate`.

    Args:
      pairs: training pairs.
      records: their texts; None for zeros of the embeddings' shape.
      settings: settings of the run; `data.cache` is where embeddings are kept.
      mesh: device mesh of the run.
      as_teacher: true if the towers learn the guide's embeddings, so that they can search its indexes.

    Raises:
      EndxError: the guide cannot be loaded, or its embeddings are not finite.
    """
    name = settings.objective.given_model
    if not name:
        return pairs
    if records is None:
        one_device = make_mesh(MeshSettings(), jax.local_devices()[:1])
        width = outline(name).config.width if is_known(name) else load(name, mesh=one_device).width
        tables = zip(SIDES, (pairs.questions, pairs.answers), strict=True)
        zero = np.zeros((1, 1), np.float32)
        zeros = {side: np.broadcast_to(zero, (len(table), width)) for side, table in tables}
        return dataclasses.replace(pairs, guide=zeros)
    guide, cache = load(name, mesh=mesh), VectorCache(settings.data.cache)
    check_equal(lambda: {"model to learn from": guide.identity})
    texts, drawn = {"question": records.questions, "answer": records.candidates}, rows_drawn(pairs, settings)
    count = sum(map(len, drawn.values()))
    say(f"embedding {counted(count, 'text')} by {guide.name}, or reading them from {settings.data.cache or 'no cache'}")
    embedded = {
        side: DrawnRows(
            rows,
            cache.embeddings(
                functools.partial(guide.comparable, side),
                [texts[side][row] for row in rows.tolist()],
                ("guide", side, guide.identity),
                guide.width,
                name=guide.name,
            ),
        )
        for side, rows in drawn.items()
    }
    return dataclasses.replace(pairs, guide=embedded, teacher_identity=guide.identity if as_teacher else "")
