"""ENDX: a dual encoder taught by a cross-encoder through the geometry of its embeddings (Wang et al. 2021).

Both are trained together. The cross-encoder reads only matched pairs, so it costs no more than another tower; it is not
used in inference.
"""

import dataclasses
from typing import cast

import flax.struct
import jax
import jax.numpy as jnp

from endx_jax.batch import Batch, Tokens
from endx_jax.losses.geometry import KERNELS, REDUCTIONS, TERMS, embedding_regression, geometry_alignment
from endx_jax.methods.dual import DualObjective, DualSettings
from endx_jax.methods.endx.teacher import CrossEncoder
from endx_jax.methods.objective import Embeddings, LossAndMetrics, Objective, known_ids
from endx_jax.models.dropout import fold
from endx_jax.models.pooling import PENALTIES
from endx_jax.settings import check, check_choice, key

Array = jax.Array

ALIGNMENTS = ("geometry", "regression")

# What the teacher may take from the student: the groups that both then train.
SHARED_WITH_TEACHER = {"nothing": (), "token_embedder": ("token_embedder",), "encoder": ("token_embedder", "encoder")}


@dataclasses.dataclass(frozen=True)
class EndxSettings(DualSettings):
    """Settings of the method, `config.objective`; docs/endx.md has the choices that the paper leaves open."""

    name: str = key("endx", "Name of the method.")
    dual_weight: float = key(0.25, "Weight of the student's loss in Eq. 13.")
    cross_weight: float = key(0.25, "Weight of the teacher's loss in Eq. 13.")
    alignment_weight: float = key(0.5, "Weight of the alignment in Eq. 13.")
    alignment: str = key("geometry", f"Alignment with the teacher: one of {', '.join(ALIGNMENTS)} (of each embedding).")
    weights: tuple[tuple[str, float], ...] = key(
        (("a|q", 0.5), ("q|q", 0.5), ("q|a", 0.5), ("a|a", 0.5)),
        "(term, weight) pairs of Eq. 12; other terms are not computed (ENDX: 0.5 across, 1e4 within).",
    )
    ramp_epochs: float = key(
        5.0, "Passes over the training pairs in which the terms' weights rise from 0. 0: given by `ramp_steps`."
    )
    ramp_steps: int = key(0, "Steps in which the terms' weights rise from 0, if `ramp_epochs` is 0.")
    kernel: str = key(
        "inner", f"Similarity of two embeddings in the alignment: one of {', '.join(KERNELS)} (ENDX: inner)."
    )
    alignment_temperatures: tuple[float, float] = key(
        (1.0, 1.0), "Temperatures of student and teacher, which divide the scores in the alignment."
    )
    diagonal: bool = key(True, "Includes a text among its neighbours in q|q and a|a (t-SNE: no).")
    reduction: str = key("batchmean", f"Reduction of the alignment's terms: one of {', '.join(REDUCTIONS)}.")
    stop_gradient: bool = key(True, "Stops the alignment's gradient to the teacher.")
    cross_heads: int = key(12, "Attention heads of the teacher.")
    cross_residual: bool = key(
        False, "Adds the queries' input to the teacher's attention output (BERT: yes; Eqs. 2 to 4: no)."
    )
    teacher_shares: str = key(
        "nothing", f"Parameters that the teacher shares with the student: one of {', '.join(SHARED_WITH_TEACHER)}."
    )

    def __post_init__(self):
        super().__post_init__()
        check_choice("objective.alignment", self.alignment, ALIGNMENTS)
        check_choice("objective.kernel", self.kernel, KERNELS)
        check_choice("objective.reduction", self.reduction, REDUCTIONS)
        check_choice("objective.teacher_shares", self.teacher_shares, SHARED_WITH_TEACHER)
        for entry in self.weights:
            numbers = len(entry) == 2 and isinstance(entry[1], int | float)
            check(numbers, f"objective.weights holds {entry!r}, which is no (term and number)")
            check_choice("objective.weights", entry[0], TERMS)
        check(
            not (self.ramp_steps and self.ramp_epochs),
            f"objective.ramp_steps and ramp_epochs are {self.ramp_steps} and {self.ramp_epochs}: set one to 0",
        )
        check(min(self.ramp_steps, self.ramp_epochs) >= 0, "objective.ramp_steps and ramp_epochs must not be negative")
        check(
            len(self.alignment_temperatures) == 2 and min(self.alignment_temperatures) > 0,
            f"objective.alignment_temperatures is {self.alignment_temperatures}; it must be two positive numbers",
        )


@flax.struct.dataclass
class TaughtEmbeddings:
    """Embeddings of B pairs by student and teacher.

    Attributes:
      student: the dual encoder's embeddings.
      teacher: the cross-encoder's.
    """

    student: Embeddings
    teacher: Embeddings


@dataclasses.dataclass(frozen=True)
class EndxObjective(Objective):
    """Dual encoder (the student), cross-encoder (the teacher), and their alignment.

    Parameters are those of the dual objective and `teacher`: `cross_encoder`, and `encoders`, initialised as a copy of
    the student's encoders in its sharing, without the parameters named by `settings.teacher_shares`.
    """

    settings: EndxSettings

    @property
    def dual(self) -> DualObjective:
        """Objective of the student alone."""
        return DualObjective(self.model, self.settings, self.execution)

    @property
    def cross_encoder(self) -> CrossEncoder:
        """Part of the teacher above its encoders, pooled and normalised as the student's question tower."""
        settings, tower = self.settings, self.model.question
        return CrossEncoder(
            pooling=tower.pooling,
            heads=settings.cross_heads,
            residual=settings.cross_residual,
            normalize=tower.normalize,
            dtype=tower.token_embedder.dtype,
        )

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Adds the teacher's parameters to those of the dual encoder; `key` draws the cross-encoder's."""
        width = self._encodings_width(dual_encoder)
        encodings, mask = jnp.zeros((1, 2, width)), jnp.ones((1, 2), bool)
        drawn = self.cross_encoder.init(key, encodings, mask, encodings, mask)["params"]
        own = {"token_embedder", "encoder"} - set(SHARED_WITH_TEACHER[self.settings.teacher_shares])
        encoders = {
            place: {group: jax.tree.map(_of_its_own, params) for group, params in groups.items() if group in own}
            for place, groups in dual_encoder.items()
        }
        encoders = {place: groups for place, groups in encoders.items() if groups}
        return self.dual.init(key, dual_encoder) | {"teacher": {"cross_encoder": drawn, "encoders": encoders}}

    def loss(self, params: dict, embedded: TaughtEmbeddings, batch: Batch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch (Eq. 13).

        The metrics are those of the dual objective; `dual_loss`; `cross_loss` and `cross_in_batch_accuracy`, the
        teacher's; `alignment_weight/TERM`, `alignment/TERM` and `weighted_alignment/TERM` of each term.
        """
        del keys
        settings, dual = self.settings, self.dual
        temperature = dual.temperature(params)
        rows = (embedded, known_ids(batch))
        (dual_loss, metrics), (cross_loss, of_teacher), terms = self.execution.reduce_rows(
            self._losses, temperature, rows
        )

        weights = self._weights(step)
        aligned = sum(weights[term] * terms[term] for term in terms)
        loss = (
            settings.dual_weight * dual_loss + settings.cross_weight * cross_loss + settings.alignment_weight * aligned
        )
        metrics = metrics | {
            "temperature": temperature,
            "dual_loss": dual_loss,
            "cross_loss": cross_loss,
            "cross_in_batch_accuracy": of_teacher["in_batch_accuracy"],
        }
        for term, value in terms.items():
            metrics[f"alignment/{term}"] = value
            metrics[f"weighted_alignment/{term}"] = settings.alignment_weight * weights[term] * value
        return dual.with_penalty(loss, metrics, embedded.student.penalty + embedded.teacher.penalty)

    def embed(self, params: dict, rows: tuple[Batch, Array]) -> TaughtEmbeddings:
        """Embeds pairs with student and teacher, given their dropout keys [B]."""
        return TaughtEmbeddings(student=self.dual.embed(params, rows), teacher=self.embed_as_teacher(params, *rows))

    def embed_as_teacher(self, params: dict, batch: Batch, keys: Array | None = None) -> Embeddings:
        """Computes the cross-embeddings of matched pairs; `keys` [B] switches dropout on."""
        encoders = _merge(params["dual_encoder"], params["teacher"]["encoders"])
        questions, answers = cast(Tokens, batch.question), cast(Tokens, batch.answer)

        def encode(side: str, tokens: Tokens, number: int) -> Array:
            # The student's own keys: where encoders are shared, both have the same masks and so the same encodings.
            own = None if keys is None else fold(keys, number)
            return self.model.encodings(encoders, side, tokens, own)

        question, answer = encode("question", questions, 0), encode("answer", answers, 1)
        variables = {"params": params["teacher"]["cross_encoder"]}
        (of_question, of_answer), sown = self.cross_encoder.apply(
            variables, question, questions.mask, answer, answers.mask, mutable=[PENALTIES]
        )
        penalty = sum(jax.tree.leaves(sown), start=jnp.zeros(of_question.shape[0]))
        return Embeddings(of_question, of_answer, penalty)

    def _losses(self, temperature: Array, rows: tuple[TaughtEmbeddings, dict], axis_name) -> tuple:
        """Computes the student's loss and metrics, the teacher's loss and metrics, and the alignment's raw terms."""
        student, teacher, ids = rows[0].student, rows[0].teacher, rows[1]
        of_student = self.dual.retrieval_loss(temperature, (student, ids), axis_name)
        ids = {name: value for name, value in ids.items() if name != "hard_negative_ids"}
        of_teacher = self.dual.retrieval_loss(temperature, (teacher, ids), axis_name)
        pairs = (student.question, student.answer), (teacher.question, teacher.answer)
        return of_student, of_teacher, self._alignment(*pairs, axis_name)

    def _alignment(self, student: tuple, teacher: tuple, axis_name) -> dict[str, Array]:
        settings = self.settings
        if settings.alignment == "regression":
            if settings.stop_gradient:
                teacher = jax.lax.stop_gradient(teacher)
            return {"regression": embedding_regression(student, teacher, axis_name=axis_name)[0]}
        _, terms = geometry_alignment(
            student,
            teacher,
            weights={term: 1.0 for term, weight in settings.weights if weight},
            kernel=settings.kernel,
            temperature=settings.alignment_temperatures,
            diagonal=settings.diagonal,
            reduction=settings.reduction,
            stop_gradient=settings.stop_gradient,
            tile=self.execution.loss_tile,
            axis_name=axis_name,
        )
        return terms

    def _weights(self, step: Array) -> dict[str, Array]:
        """Returns each term's weight at a step, which rises linearly and is above zero at the first step."""
        ramp_steps = self.settings.ramp_steps or self.settings.ramp_epochs * self.steps_per_epoch
        risen = jnp.minimum(1.0, (step + 1) / max(ramp_steps, 1.0))
        weights = dict(self.settings.weights) if self.settings.alignment == "geometry" else {"regression": 1.0}
        return {term: weight * risen for term, weight in weights.items()}

    def _encodings_width(self, dual_encoder: dict) -> int:
        tokens = Tokens(ids=jnp.zeros((1, 2), jnp.int32), mask=jnp.ones((1, 2), bool))
        return jax.eval_shape(lambda p: self.model.encodings(p, "question", tokens), dual_encoder).shape[-1]


def _merge(student: dict, teacher: dict) -> dict:
    """Merges the student's groups of parameters with those that only the teacher has."""
    return {place: groups | teacher.get(place, {}) for place, groups in student.items()}


def _of_its_own(leaf):
    """Copies an array on a device, so that no two parameters share a buffer."""
    return jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf
