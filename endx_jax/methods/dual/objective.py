"""Dual-encoder objective: in-batch sampled softmax over the global batch (Dong et al. 2022, section 3)."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from endx_jax.batch import Batch
from endx_jax.losses.contrastive import DIRECTIONS, in_batch_softmax
from endx_jax.methods.objective import Embeddings, LossAndMetrics, Objective, known_ids
from endx_jax.settings import check, check_choice, key

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class DualSettings:
    """`config.objective` of the method `dual`. `model.normalize` selects between inner product and cosine."""

    name: str = key("dual", "Name of the method.")
    temperature: float = key(
        0.05, "Divisor of the similarities; initial value if learn_temperature is set (t5x_retrieval: 0.01)."
    )
    learn_temperature: bool = key(False, "Train the logarithm of the temperature.")
    direction: str = key(
        "question_to_answer",
        f"Direction of the softmax: one of {', '.join(DIRECTIONS)} (Dong: the first; t5x_retrieval: sum).",
    )
    mask_false_negatives: bool = key(
        True, "Exclude equal texts and known positives from the negatives (papers: False)."
    )
    orthogonality: float = key(
        0.0, "Weight of multi-hop pooling's penalty on hops with similar attention (Lin et al.: 1)."
    )
    loss_tile: int = key(
        -1,
        "Rows and columns of the score tiles of streamed losses; 0: dense; -1: automatic, dense for small batches.",
        changes_results=False,
    )

    def __post_init__(self):
        check(self.temperature > 0, f"objective.temperature is {self.temperature}; it must be positive")
        check_choice("objective.direction", self.direction, DIRECTIONS)
        check(self.orthogonality >= 0, f"objective.orthogonality is {self.orthogonality}; it must not be negative")
        check(self.loss_tile >= -1, f"objective.loss_tile is {self.loss_tile}; it must be positive, 0 or -1")


@dataclasses.dataclass(frozen=True)
class DualObjective(Objective):
    """Objective of a dual encoder trained by in-batch softmax.

    Parameters are `{"dual_encoder": ...}`, and `log_temperature` if the temperature is learned.
    """

    settings: DualSettings

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Returns the initial parameters."""
        params = super().init(key, dual_encoder)
        if self.settings.learn_temperature:
            params["log_temperature"] = jnp.asarray(math.log(self.settings.temperature), jnp.float32)
        return params

    def loss(self, params: dict, embedded: Embeddings, batch: Batch, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the in-batch softmax of a global batch.

        The metrics are `in_batch_accuracy`, `masked_fraction` (see `in_batch_softmax`), `temperature` and, if its
        weight is not 0, `orthogonality_penalty`.
        """
        del keys, step
        temperature = self.temperature(params)
        rows = (embedded, known_ids(batch))
        loss, metrics = self.execution.reduce_rows(self.retrieval_loss, temperature, rows)
        return self.with_penalty(loss, metrics | {"temperature": temperature}, embedded.penalty)

    def retrieval_loss(
        self, temperature: Array, rows: tuple[Embeddings, dict[str, Array]], axis_name=None
    ) -> LossAndMetrics:
        """Computes the in-batch softmax loss and its metrics from embeddings and the ids of their pairs."""
        settings, (embeddings, ids) = self.settings, rows
        masks = {name: ids[name] for name in ids if settings.mask_false_negatives or name == "hard_negative_ids"}
        return in_batch_softmax(
            embeddings.question,
            embeddings.answer,
            temperature=temperature,
            hard_negatives=embeddings.hard_negatives,
            direction=settings.direction,
            tile=self.execution.loss_tile,
            axis_name=axis_name,
            **masks,
        )

    def with_penalty(self, loss: Array, metrics: dict[str, Array], penalty: Array) -> LossAndMetrics:
        """Adds the mean pooling penalty, given as [B], to loss and metrics if its weight is not 0."""
        if not self.settings.orthogonality:
            return loss, metrics
        mean = jnp.mean(penalty)
        return loss + self.settings.orthogonality * mean, metrics | {"orthogonality_penalty": mean}

    def temperature(self, params: dict) -> Array:
        """Returns the learned temperature, or the one of the settings if it is not learned."""
        if self.settings.learn_temperature:
            return jnp.exp(params["log_temperature"])
        return jnp.asarray(self.settings.temperature)
