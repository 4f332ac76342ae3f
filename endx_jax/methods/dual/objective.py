"""Dual-encoder objective: a contrastive loss over the global batch (Dong et al. 2022, section 3)."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp

from endx_jax.errors import EndxError
from endx_jax.losses import Options, Prefixes, in_batch_sigmoid, in_batch_softmax
from endx_jax.losses.distillation import DISTILLATIONS, KL
from endx_jax.methods.dual.settings import SIGMOID, SOFTMAX, DualSettings
from endx_jax.methods.objective import Embeddings, LossAndMetrics, Objective
from endx_jax.numerics import at_least_float32, l2_normalize

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class DualObjective(Objective):
    """Objective of a dual encoder trained by a contrastive loss.

    Parameters are `{"dual_encoder": ...}`, `log_temperature` if the temperature is learned, and `logit_bias` of the
    sigmoid loss.
    """

    settings: DualSettings

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Returns the initial parameters."""
        params = super().init(key, dual_encoder)
        if self.settings.learn_temperature:
            params["log_temperature"] = jnp.asarray(math.log(self.settings.temperature), jnp.float32)
        if self.settings.contrastive.loss == SIGMOID:
            params["logit_bias"] = jnp.asarray(self.settings.contrastive.bias, jnp.float32)
        return params

    def retrieval_loss(
        self, learned: dict[str, Array], rows: tuple[Embeddings, dict[str, Any]], axis_name=None
    ) -> LossAndMetrics:
        """Computes the contrastive loss from `learned`, embeddings and `loss_arrays`.

        The metrics are those of `in_batch_softmax` and, with a teacher's scores, `distillation_loss` and
        `teacher_agreement`.
        """
        settings, embeddings, ids = self.settings, rows[0], dict(rows[1])
        guide, log_q, teacher = (ids.pop(name, None) for name in ("guide", "log_q", "teacher"))
        if not settings.mask_false_negatives:
            ids = {name: value for name, value in ids.items() if name == "hard_negative_ids"}
        options = settings.contrastive.options(guide, log_q, self.prefixes)
        value, metrics = self._contrastive(learned, embeddings, ids, options, axis_name)
        if not settings.distillation.loss or embeddings.hard_negatives is None:
            return value, metrics
        distilled, agreement = self._distillation(learned["temperature"], embeddings, cast(Array, teacher), axis_name)
        value = settings.distillation.contrastive_weight * value + settings.distillation.weight * distilled
        return value, metrics | {"distillation_loss": distilled} | agreement

    def _contrastive(self, learned: dict, embeddings: Embeddings, ids: dict, options: Options, axis_name) -> Any:
        settings = self.settings
        if options.prefixes and max(options.prefixes.widths) > (width := embeddings.question.shape[1]):
            dims = settings.matryoshka_dims
            raise EndxError(f"objective.matryoshka_dims is {dims}, but the embeddings have {width} numbers")
        loss: Callable[..., LossAndMetrics] = in_batch_sigmoid
        if settings.contrastive.loss == SOFTMAX:
            loss = functools.partial(in_batch_softmax, direction=settings.direction)
        return loss(
            embeddings.question,
            embeddings.answer,
            hard_negatives=embeddings.hard_negatives,
            tile=self.tile(embeddings),
            axis_name=axis_name,
            options=options,
            **learned,
            **ids,
        )

    def tile(self, embeddings: Embeddings) -> int | None:
        """Returns the number of rows of the score matrix that are computed at a time; None for all."""
        del embeddings
        return self.execution.loss_tile

    @property
    def prefixes(self) -> Prefixes | None:
        """Prefixes of embeddings to train; None: the whole ones alone."""
        return self.settings.prefixes(self.model.question.normalize) if self.settings.matryoshka_dims else None

    def _distillation(self, temperature: Array, embeddings: Embeddings, teacher: Array, axis_name) -> LossAndMetrics:
        """Computes the weighted sum of the distillation losses of all prefixes, and the metrics of the longest."""
        question = at_least_float32(embeddings.question)
        groups = (embeddings.answer[:, None], embeddings.hard_negatives)
        candidates = jnp.concatenate([at_least_float32(cast(Array, group)) for group in groups], axis=1)
        prefixes = self.prefixes or Prefixes((question.shape[1],), (1.0,), normalize=False)
        total: Array = jnp.zeros((), question.dtype)
        metrics: dict[str, Array] = {}
        for width, weight in zip(prefixes.widths, prefixes.weights, strict=True):
            sides = [question[:, :width], candidates[..., :width]]
            if prefixes.normalize:
                sides = [l2_normalize(side) for side in sides]
            scores = jnp.einsum("be,bke->bk", *sides, precision=jax.lax.Precision.HIGHEST)
            loss, metrics = self._of_scores(scores, temperature, teacher, axis_name)
            total += weight * loss
        return total, metrics

    def _of_scores(self, scores: Array, temperature: Array, teacher: Array, axis_name) -> LossAndMetrics:
        """Computes the loss between the scores of a teacher [B, 1 + K] and those of the answers and hard negatives."""
        settings = self.settings.distillation
        scores = scores / temperature if settings.loss == KL else scores
        return DISTILLATIONS[settings.loss](
            scores, teacher / settings.temperature, where=jnp.isfinite(teacher), axis_name=axis_name
        )

    def learned(self, params: dict) -> dict[str, Array]:
        """Returns the parameters of the loss: `temperature`, learned or not, and `bias` of the sigmoid loss."""
        bias = {"bias": params["logit_bias"]} if "logit_bias" in params else {}
        if self.settings.learn_temperature:
            return {"temperature": jnp.exp(params["log_temperature"]), **bias}
        return {"temperature": jnp.asarray(self.settings.temperature), **bias}
