r"""Dual encoder distilled from a pair classifier (cross-encoder) that scores the answers of a batch.

ENDX's own teacher reads matched pairs only. A pair classifier reads a question with any answer, so its scores of the
batch's B x B pairs are a distribution p_cross over each question's answers, with which the student's is aligned:

$$ L = w_{dual} L_{dual} + w_{cross} L_{cross} + w_{align} \frac1B \sum_i KL(p_{cross}(.|q_i) \| p_{dual}(.|q_i)) $$

This is distillation as most of the field means it. A step costs B (1 + K) passes of the classifier.
"""

import dataclasses
import functools
import pathlib
from typing import Any, cast

import jax
import jax.numpy as jnp

from endx_jax.batch import Batch, Tokens
from endx_jax.errors import EndxError
from endx_jax.losses.distillation import listwise_kl
from endx_jax.losses.false_negatives import false_negative_mask
from endx_jax.losses.pairs import pair_softmax
from endx_jax.methods.dual import DualObjective, DualSettings, loss_arrays
from endx_jax.methods.endx.given import read_teacher, teacher_objective
from endx_jax.methods.endx.objective import ramp
from endx_jax.methods.method import Method
from endx_jax.methods.objective import Embeddings, LossAndMetrics, Objective, known_ids
from endx_jax.models.dropout import fold
from endx_jax.settings import check, key

Array = jax.Array

# Key number of the teacher's dropout, distinct from the towers'.
_TEACHER = 1 << 22


@dataclasses.dataclass(frozen=True)
class DistillSettings(DualSettings):
    """`config.objective` of the method `distill`."""

    name: str = key("distill", "Name of the method.")
    teacher_from: str = key(
        "", "Workdir of a run of objective.name=pair with the tokenizer of model.pretrained, the teacher."
    )
    teacher_frozen: bool = key(True, "Keep the teacher as it is: without gradient, optimizer state and dropout.")
    candidates: int = key(
        0, "Answers of the batch that the teacher scores per question besides its own: the student's best. 0: all."
    )
    dual_weight: float = key(0.5, "Weight of the student's retrieval loss.")
    cross_weight: float = key(0.0, "Weight of the teacher's softmax loss over the scored answers.")
    alignment_weight: float = key(0.5, "Weight of the divergence of the student's distribution from the teacher's.")
    alignment_temperatures: tuple[float, float] = key(
        (0.05, 1.0), "Divisors (student's, teacher's) of the scores in the divergence."
    )
    ramp_start: int = key(0, "Optimizer steps before the divergence's weight begins to rise.")
    ramp_steps: int = key(0, "Optimizer steps over which the divergence's weight rises from 0.")

    def __post_init__(self):
        super().__post_init__()
        for name in ("candidates", "dual_weight", "cross_weight", "alignment_weight", "ramp_start", "ramp_steps"):
            check(getattr(self, name) >= 0, f"objective.{name} is {getattr(self, name)}; it must not be negative")
        check(
            min(self.alignment_temperatures) > 0,
            f"objective.alignment_temperatures is {self.alignment_temperatures}; it must be two positive numbers",
        )


@dataclasses.dataclass(frozen=True)
class DistillObjective(Objective):
    """Objective of a dual encoder (student) and a pair classifier (teacher).

    Parameters are those of the dual objective and `teacher`, those of the pair classifier's run.
    """

    settings: DistillSettings

    @property
    def dual(self) -> DualObjective:
        """Objective of the student alone."""
        return DualObjective(self.model, self.settings, self.execution)

    @functools.cached_property
    def teacher(self) -> Any:
        """Objective of the teacher's run, with its classifier.

        Raises:
          EndxError: `teacher_from` is not set or holds no pair classifier, or its vocabulary is not the student's.
        """
        where = self.settings.teacher_from
        check(
            bool(where),
            "objective.name=distill needs a teacher: set objective.teacher_from to a run of objective.name=pair",
        )
        teacher = teacher_objective(pathlib.Path(where))
        sizes = [model.question.token_embedder.vocab_size for model in (self.model, teacher.model)]
        check(
            sizes[0] == sizes[1],
            f"objective.teacher_from={where} has a vocabulary of {sizes[1]:,} tokens and the student one of "
            f"{sizes[0]:,}: train both on the same model.pretrained",
        )
        return teacher

    @property
    def frozen(self) -> tuple[str, ...]:
        """Patterns of the paths of parameters that are not trained."""
        return (r"^teacher/",) if self.settings.teacher_frozen else ()

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Returns the initial parameters for a given dual encoder's."""
        teacher = self.teacher
        return self.dual.init(key, dual_encoder) | {"teacher": teacher.init(key, teacher.model.init(key))}

    def inherit(self, params: dict) -> dict:
        """Returns initial parameters with the teacher of `teacher_from`."""
        where = pathlib.Path(self.settings.teacher_from)
        return params | {"teacher": read_teacher(where, params["teacher"], method="pair")}

    def embed_params(self, params: dict) -> dict:
        """Returns the parameters that `embed` reads: the student's."""
        return {name: value for name, value in params.items() if name != "teacher"}

    def embed(self, params: dict, rows: tuple[Batch, Array]) -> Embeddings:
        """Embeds pairs, given as (batch, dropout keys [B]), with the student."""
        return self.dual.embed(params, rows)

    def loss(self, params: dict, embedded: Embeddings, batch: Batch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch.

        The metrics are those of the dual objective, `dual_loss`, the teacher's `cross_loss` and
        `cross_in_batch_accuracy` over the scored answers, `alignment`, the divergence in nats, `dual_entropy` and
        `cross_entropy`, the mean entropies of both distributions in nats, and `teacher_agreement` of `listwise_kl`.
        """
        settings, dual = self.settings, self.dual
        learned = dual.learned(params)
        rows = (embedded, loss_arrays(batch))
        dual_loss, metrics = self.execution.reduce_rows(dual.retrieval_loss, learned, rows)

        scores = jnp.matmul(embedded.question, embedded.answer.T, precision=jax.lax.Precision.HIGHEST)
        chosen = choose(scores, settings.candidates)
        student = jnp.take_along_axis(scores, chosen, axis=1)
        teacher = self.score(params["teacher"], batch, chosen, keys)
        masks = {name: ids for name, ids in known_ids(batch).items() if name != "hard_negative_ids"}
        known = false_negative_mask(**masks) if settings.mask_false_negatives else None
        where = None if known is None else ~jnp.take_along_axis(known, chosen, axis=1)
        cross_loss, of_teacher = pair_softmax(teacher, where=where)
        warmths = settings.alignment_temperatures
        student, sharpened = student / warmths[0], teacher / warmths[1]
        divergence, agreement = listwise_kl(student, sharpened)
        weight = settings.alignment_weight * ramp(step, settings.ramp_start, settings.ramp_steps)
        loss = settings.dual_weight * dual_loss + settings.cross_weight * cross_loss + weight * divergence
        metrics = metrics | {
            **learned,
            **agreement,
            "dual_loss": dual_loss,
            "cross_loss": cross_loss,
            "cross_in_batch_accuracy": of_teacher["pair_accuracy"],
            "alignment": divergence,
            "dual_entropy": entropy(student),
            "cross_entropy": entropy(sharpened),
        }
        return dual.with_penalty(loss, metrics, embedded.penalty)

    def score(self, teacher: dict, batch: Batch, chosen: Array, keys: Array) -> Array:
        """Scores answers of the batch for each question by the teacher, in the chunks of the towers.

        Args:
          teacher: parameters of the teacher.
          batch: B pairs.
          chosen: int32 [B, N], the rows of the answers.
          keys: PRNG keys [B] of the pairs, for the dropout of a teacher that is trained.

        Returns:
          Logits, float32 [B, N].

        Raises:
          EndxError: question and answer together exceed the positions of the teacher.
        """
        question, answer = cast(Tokens, batch.question), cast(Tokens, batch.answer)
        width = question.ids.shape[1] + answer.ids.shape[1] - 1
        positions = self.teacher.model.question.encoder.config.positions
        if width > positions:
            raise EndxError(
                f"question and answer together have up to {width} tokens, more than the {positions} positions of "
                f"objective.teacher_from={self.settings.teacher_from}: lower data.question_length or data.answer_length"
            )

        def score_rows(params: dict, rows: tuple) -> Array:
            questions, answers, keys = rows
            count = answers.ids.shape[1]
            repeated = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), questions)
            pairs = join(repeated, jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), answers))
            own = None
            if not self.settings.teacher_frozen:
                own = jax.vmap(lambda n: fold(keys, _TEACHER + n), out_axes=1)(jnp.arange(count)).reshape(-1)
            found = self.teacher.classifier.score(params["dual_encoder"], params["pair"], pairs, own)
            return found.reshape(-1, count)

        answers = Tokens(answer.ids[chosen], answer.mask[chosen])
        return self.execution.map_rows(score_rows, teacher, (Tokens(question.ids, question.mask), answers, keys))


def choose(scores: Array, count: int) -> Array:
    """Returns each question's own answer, then the answers of the batch with the highest scores.

    Args:
      scores: [B, B], without effect on gradients.
      count: number of other answers; 0 for all B - 1.

    Returns:
      Rows of the answers, int32 [B, 1 + count].
    """
    own = jnp.arange(len(scores))
    others = jnp.where(jnp.eye(len(scores), dtype=bool), -jnp.inf, jax.lax.stop_gradient(scores))
    _, best = jax.lax.top_k(others, min(count or len(scores) - 1, len(scores) - 1))
    return jnp.concatenate([own[:, None], best], axis=1)


def entropy(logits: Array) -> Array:
    """Returns the mean entropy in nats of the softmax of each row of logits [B, N], without a gradient."""
    log_p = jax.nn.log_softmax(jax.lax.stop_gradient(logits), axis=1)
    return -jnp.mean(jnp.sum(jnp.exp(log_p) * log_p, axis=1))


def join(first: Tokens, second: Tokens) -> Tokens:
    """Joins padded texts row by row as `[CLS] first [SEP] second [SEP]`; see `methods.pair.batches.join`.

    Args:
      first: R texts `[CLS] text [SEP]`, padded to N.
      second: R texts of this form, padded to M, whose `[CLS]` is dropped.

    Returns:
      R joined texts, padded to N + M - 1, with their `second`.
    """
    begins, width = first.lengths, first.ids.shape[1]
    both = jnp.concatenate([first.ids, second.ids[:, 1:]], axis=1)
    place = jnp.arange(both.shape[1])[None]
    source = jnp.where(place < begins[:, None], place, width + place - begins[:, None])
    mask = place < (begins + second.lengths - 1)[:, None]
    ids = jnp.take_along_axis(both, jnp.minimum(source, both.shape[1] - 1), axis=1)
    return Tokens(jnp.where(mask, ids, 0), mask, second=begins)


METHOD = Method("distill", DistillSettings, DistillObjective)
