"""ENDX objective: a dual encoder distilled from a cross-encoder by geometry alignment (Wang et al. 2021).

Both are trained together. The cross-encoder reads matched pairs only, so it costs no more than another tower. It is not
used at inference.
"""

import dataclasses
import math
from typing import cast

import flax.struct
import jax
import jax.numpy as jnp

from endx_jax.batch import Batch, Tokens
from endx_jax.losses.geometry import KERNELS, TERMS, embedding_regression, geometry_alignment
from endx_jax.methods.dual import DualObjective, DualSettings
from endx_jax.methods.endx.teacher import CrossEncoder, read_teacher
from endx_jax.methods.objective import Embeddings, LossAndMetrics, Objective, loss_arrays
from endx_jax.models.dropout import fold
from endx_jax.models.products import FLOAT32
from endx_jax.settings import check_choice, key, require

Array = jax.Array

ALIGNMENTS = ("geometry", "regression")

# Values of `teacher_shares`: the parameter groups that teacher and student share and train together.
SHARED_WITH_TEACHER = {"nothing": (), "token_embedder": ("token_embedder",), "encoder": ("token_embedder", "encoder")}


@dataclasses.dataclass(frozen=True)
class EndxSettings(DualSettings):
    """`config.objective` of the method `endx`. docs/endx.md lists what the paper leaves open, and our findings.

    Defaults are the paper's where it states them, except the 1e4 of q|q and a|a, which suits only its unnormalized
    scores. Recipes with unit vectors also set the temperatures of the alignment, since the paper has none.
    """

    name: str = key("endx", "Name of the method.")
    dual_weight: float = key(0.25, "Weight of the student's retrieval loss in Eq. 13.")
    cross_weight: float = key(0.25, "Weight of the teacher's retrieval loss in Eq. 13.")
    alignment_weight: float = key(0.5, "Weight of the alignment loss in Eq. 13.")
    alignment: str = key(
        "geometry",
        "Alignment loss; regression: squared distances to the teacher's embeddings.",
        choices=ALIGNMENTS,
    )
    weights: tuple[tuple[str, float], ...] = key(
        (("a|q", 0.5), ("q|q", 0.5), ("q|a", 0.5), ("a|a", 0.5)),
        "(term, weight) pairs of Eq. 12; omitted terms are not computed (ENDX: a|q, q|a: 0.5; q|q, a|a: 1e4).",
    )
    ramp_epochs: float = key(
        5.0, "Epochs over which the terms' weights rise linearly from 0; 0: use `ramp_steps`.", least=0
    )
    ramp_steps: int = key(
        0, "Optimizer steps over which the terms' weights rise; an alternative to `ramp_epochs`.", least=0
    )
    ramp_start: int = key(0, "Optimizer steps before the terms' weights begin to rise.", least=0)
    kernel: str = key("inner", "Similarity of two embeddings (ENDX: inner).", choices=KERNELS)
    alignment_temperatures: tuple[float, float] = key(
        (1.0, 1.0), "Divisors (student's, teacher's) of the scores in the alignment loss.", above=0
    )
    diagonal: bool = key(True, "Include each text among its own neighbours in q|q and a|a (t-SNE: False).")
    stop_gradient: bool = key(True, "Stop the alignment's gradient at the teacher's embeddings.")
    cross_heads: int = key(12, "Attention heads of the teacher.", least=1)
    cross_residual: bool = key(
        False, "Add the query text's encodings to the teacher's attention output (BERT: True; Eqs. 2 to 4: False)."
    )
    teacher_shares: str = key(
        "nothing", "Parameters that the teacher shares with the student.", choices=SHARED_WITH_TEACHER
    )
    teacher_normalize: bool = key(
        True, "Scale the teacher's embeddings to unit norm if model.normalize does so with the student's."
    )
    teacher_temperature: float = key(
        0.0,
        "Divisor of the similarities in the teacher's own retrieval loss. 0: the student's temperature.",
        least=0,
    )
    teacher_model: str = key(
        "",
        "Workdir, folder or name of an embedding model, whose embeddings of the training texts, computed once, take "
        "the place of the cross-encoder's. Empty: none.",
    )
    teacher_from: str = key("", "Workdir of an ENDX run whose teacher, of the best checkpoint, is taken. Empty: none.")
    teacher_frozen: bool = key(
        False, "Keep the teacher of `teacher_from` as it is: without gradient, optimizer state and dropout."
    )

    def __post_init__(self):
        super().__post_init__()
        for term, _ in self.weights:
            check_choice("objective.weights", term, TERMS)
        require(
            not (self.ramp_steps and self.ramp_epochs),
            f"objective.ramp_steps and ramp_epochs are {self.ramp_steps} and {self.ramp_epochs}: set one to 0",
        )
        require(
            not self.teacher_frozen or (bool(self.teacher_from) and self.teacher_shares != "encoder"),
            "objective.teacher_frozen keeps the teacher of another run: name its workdir in objective.teacher_from, "
            "and set objective.teacher_shares to nothing or token_embedder",
        )
        require(
            not (self.teacher_model and (self.teacher_from or self.contrastive.guide)),
            "objective.teacher_model takes the place of the cross-encoder, and of a guide: leave "
            "objective.teacher_from and objective.contrastive.guide empty",
        )

    @property
    def given_model(self) -> str:
        """Model whose embeddings batches hold."""
        return self.teacher_model or self.contrastive.guide


@flax.struct.dataclass
class TaughtEmbeddings:
    """Embeddings of B pairs by student and teacher.

    Attributes:
      student: embeddings by the dual encoder.
      teacher: embeddings by the cross-encoder, or by `teacher_model`.
    """

    student: Embeddings
    teacher: Embeddings


@dataclasses.dataclass(frozen=True)
class EndxObjective(Objective):
    """Objective of a dual encoder (student), a cross-encoder (teacher) and their alignment.

    Parameters are those of the dual objective and `teacher`, with `cross_encoder` and `encoders`. The latter start as a
    copy of the student's encoders, with the same sharing, without the groups that `settings.teacher_shares` names. With
    `settings.teacher_model`, the teacher's embeddings come with the batch, and there is no `teacher`.
    """

    settings: EndxSettings

    @property
    def dual(self) -> DualObjective:
        """Objective of the student alone."""
        return DualObjective(self.model, self.settings, self.execution)

    @property
    def cross_encoder(self) -> CrossEncoder:
        """Cross-attention on top of the teacher's encoders, with pooling and norm of the student's question tower."""
        settings, tower = self.settings, self.model.question
        return CrossEncoder(
            pooling=tower.pooling,
            heads=settings.cross_heads,
            residual=settings.cross_residual,
            normalize=tower.normalize and settings.teacher_normalize,
            dtype=tower.token_embedder.dtype,
            product_dtype=tower.product_dtype or FLOAT32,
        )

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Returns the initial parameters for a given dual encoder's; `key` draws the cross-encoder's."""
        if self.settings.teacher_model:
            return self.dual.init(key, dual_encoder)
        tokens = Tokens(ids=jnp.zeros((1, 2), jnp.int32), mask=jnp.ones((1, 2), bool))
        shape = jax.eval_shape(lambda p: self.model.encodings(p, "question", tokens), dual_encoder).shape
        encodings, mask = jnp.zeros(shape), tokens.mask
        drawn = jax.jit(self.cross_encoder.init)(key, encodings, mask, encodings, mask)["params"]
        # Student and teacher share no buffer; host arrays are copied when they are placed.
        copy = lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf  # noqa: E731
        copied = {"token_embedder", "encoder"} - set(SHARED_WITH_TEACHER[self.settings.teacher_shares])
        encoders = {
            place: {group: jax.tree.map(copy, params) for group, params in groups.items() if group in copied}
            for place, groups in dual_encoder.items()
        }
        encoders = {place: groups for place, groups in encoders.items() if groups}
        return self.dual.init(key, dual_encoder) | {"teacher": {"cross_encoder": drawn, "encoders": encoders}}

    @property
    def frozen(self) -> tuple[str, ...]:
        """Patterns of the paths of parameters that are not trained."""
        return (r"^teacher/",) if self.settings.teacher_frozen else ()

    def inherit(self, params: dict) -> dict:
        """Returns initial parameters with the teacher of `teacher_from`."""
        if not self.settings.teacher_from:
            return params
        return params | {"teacher": read_teacher(self.settings.teacher_from, params["teacher"])}

    def teacher_temperature(self, student: Array) -> Array:
        """Returns the temperature of the teacher's retrieval loss for the student's."""
        return jnp.asarray(self.settings.teacher_temperature) if self.settings.teacher_temperature else student

    def loss(self, params: dict, embedded: TaughtEmbeddings, batch: Batch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch (Eq. 13).

        The metrics are those of the dual objective, the student's `dual_loss`, the teacher's `cross_loss` and
        `cross_in_batch_accuracy`, for each term `alignment/TERM` and `weighted_alignment/TERM`, and `dual_entropy` and
        `cross_entropy`, the mean entropy in nats of p(a|q) in both spaces as the alignment compares them.
        """
        del keys
        settings, dual = self.settings, self.dual
        learned = dual.learned(params)
        rows = (embedded, loss_arrays(batch))
        (dual_loss, metrics), (cross_loss, of_teacher), terms, from_uniform = self.execution.reduce_rows(
            self._losses, learned, rows
        )

        weights = self._weights(step)
        aligned = sum(weights[term] * terms[term] for term in terms)
        loss = settings.dual_weight * dual_loss + settings.alignment_weight * aligned
        if not settings.teacher_model:
            loss = loss + settings.cross_weight * cross_loss
        metrics = metrics | {
            **learned,
            "dual_loss": dual_loss,
            "cross_loss": cross_loss,
            "cross_in_batch_accuracy": of_teacher["in_batch_accuracy"],
        }
        for name, divergence in zip(("dual_entropy", "cross_entropy"), from_uniform, strict=True):
            metrics[name] = math.log(batch.question_id.shape[0]) - divergence
        for term, value in terms.items():
            metrics[f"alignment/{term}"] = value
            metrics[f"weighted_alignment/{term}"] = settings.alignment_weight * weights[term] * value
        return loss, metrics

    def embed(self, params: dict, rows: tuple[Batch, Array]) -> TaughtEmbeddings:
        """Embeds pairs, given as (batch, dropout keys [B]), with student and teacher."""
        return TaughtEmbeddings(student=self.dual.embed(params, rows), teacher=self.embed_as_teacher(params, *rows))

    def embed_as_teacher(self, params: dict, batch: Batch, keys: Array | None = None) -> Embeddings:
        """Returns the teacher's embeddings of matched pairs; dropout is on if `keys` [B] are given, unless frozen."""
        if self.settings.teacher_model:
            return Embeddings(*batch.extra["guide"][:2])
        keys = None if self.settings.teacher_frozen else keys
        teacher_encoders = params["teacher"]["encoders"]
        encoders = {place: groups | teacher_encoders.get(place, {}) for place, groups in params["dual_encoder"].items()}
        questions, answers = cast(Tokens, batch.question), cast(Tokens, batch.answer)
        # These are the student's keys and passes: with shared encoders, both have the same dropout and encodings.
        side_keys = [fold(keys, number) for number in range(2)]
        sides = [("question", questions, side_keys[0]), ("answer", answers, side_keys[1])]
        question, answer = self.model.of_sides(self.model.encodings, encoders, sides, batch.packing)
        variables = {"params": params["teacher"]["cross_encoder"]}
        embedded = self.cross_encoder.apply(variables, question, questions.mask, answer, answers.mask)
        return Embeddings(*cast(tuple[Array, Array], embedded))

    def _losses(self, learned: dict[str, Array], rows: tuple[TaughtEmbeddings, dict], axis_name) -> tuple:
        """Returns both (loss, metrics), the unweighted alignment terms, and both spaces' `_from_uniform`."""
        student, teacher, ids = rows[0].student, rows[0].teacher, rows[1]
        if self.settings.teacher_model:
            ids = {name: value for name, value in ids.items() if name != "guide"}
        of_student = self.dual.retrieval_loss(learned, (student, ids), axis_name)
        ids = {name: value for name, value in ids.items() if name != "hard_negative_ids"}
        whole = dataclasses.replace(self.settings, matryoshka_dims=(), matryoshka_weights=())
        of_teacher = dataclasses.replace(self.dual, settings=whole).retrieval_loss(
            learned | {"temperature": self.teacher_temperature(learned["temperature"])}, (teacher, ids), axis_name
        )
        pairs = (student.question, student.answer), (teacher.question, teacher.answer)
        from_uniform = [
            self._from_uniform(pair, warmth, axis_name)
            for pair, warmth in zip(pairs, self.settings.alignment_temperatures, strict=True)
        ]
        return of_student, of_teacher, self._alignment(*pairs, axis_name), from_uniform

    def _from_uniform(self, pair: tuple, temperature: float, axis_name) -> Array:
        """Returns the mean divergence of p(a|q) from the uniform distribution, log B minus the entropy."""
        _, terms = geometry_alignment(
            jax.tree.map(lambda x: jnp.zeros_like(x[:, :1]), pair),  # equal points, so equal scores
            jax.lax.stop_gradient(pair),
            weights={"a|q": 1.0},
            kernel=self.settings.kernel,
            temperature=(1.0, temperature),
            tile=self.execution.loss_tile,
            axis_name=axis_name,
        )
        return terms["a|q"]

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
            stop_gradient=settings.stop_gradient,
            tile=self.execution.loss_tile,
            axis_name=axis_name,
        )
        return terms

    def _weights(self, step: Array) -> dict[str, Array]:
        """Returns each term's weight at a step: it rises linearly from 0, from `ramp_start` on, to its final value."""
        ramp_steps = self.settings.ramp_steps or self.settings.ramp_epochs * self.steps_per_epoch
        risen = jnp.clip((step + 1 - self.settings.ramp_start) / max(ramp_steps, 1.0), 0.0, 1.0)
        weights = dict(self.settings.weights) if self.settings.alignment == "geometry" else {"regression": 1.0}
        return {term: weight * risen for term, weight in weights.items()}
