"""The dual encoder's objective: in-batch sampled softmax over the global batch (Dong et al. 2022, section 3)."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from endx_jax.batch import Batch, Tokens
from endx_jax.losses.contrastive import DIRECTIONS, false_negative_mask, in_batch_softmax
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.settings import check, check_choice, key

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class DualSettings:
    """Held in `config.objective`. Inner product or cosine is the towers' matter: see `model.normalize`."""

    name: str = key("dual", "the method")
    temperature: float = key(0.05, "divides the similarities; where a learned one starts (t5x_retrieval: 0.01)")
    learn_temperature: bool = key(False, "whether the temperature is trained, by its logarithm")
    direction: str = key("question_to_answer", f"one of {', '.join(DIRECTIONS)} (Dong Eq. 1: one; t5x_retrieval: sum)")
    mask_false_negatives: bool = key(True, "leave equal texts and known positives out of the negatives (papers: no)")

    def __post_init__(self):
        check(self.temperature > 0, f"objective.temperature is {self.temperature}; it must be positive")
        check_choice("objective.direction", self.direction, DIRECTIONS)


@dataclasses.dataclass(frozen=True)
class DualObjective:
    """A dual encoder trained by in-batch softmax.

    Parameters are `{"dual_encoder": ...}`, and `log_temperature` where that is learned.
    """

    model: DualEncoder
    settings: DualSettings

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """The objective's parameters around those of its dual encoder; `key` draws what else a method has."""
        del key
        params: dict = {"dual_encoder": dual_encoder}
        if self.settings.learn_temperature:
            params["log_temperature"] = jnp.asarray(math.log(self.settings.temperature), jnp.float32)
        return params

    def __call__(self, params: dict, batch: Batch, rng: Array, step: Array) -> tuple[Array, dict[str, Array]]:
        """The loss of one global batch, and what to log.

        Args:
          params: of this objective.
          batch: B pairs.
          rng: the run's key; with the step and the row it makes each example's dropout key.
          step: int32 scalar.

        Returns:
          The scalar loss; metrics `in_batch_accuracy` (share of questions whose own answer scores highest among the
          batch's answers that are not false negatives), `masked_fraction` (share of off-diagonal pairs that are left
          out as false negatives) and `temperature`.
        """
        keys = example_keys(rng, step, batch.question_id.shape[0])
        question = self.model.encode(params["dual_encoder"], "question", batch.question, fold(keys, 0))
        answer = self.model.encode(params["dual_encoder"], "answer", batch.answer, fold(keys, 1))
        hard: dict = {}
        if batch.hard_negatives is not None:
            encoded = self._encode_hard_negatives(params["dual_encoder"], batch.hard_negatives, keys)
            hard = {"hard_negatives": encoded, "hard_negative_ids": batch.hard_negative_ids}
        temperature: float | Array = self.settings.temperature
        if self.settings.learn_temperature:
            temperature = jnp.exp(params["log_temperature"])
        ids = {}
        if self.settings.mask_false_negatives:
            ids = {"question_id": batch.question_id, "answer_id": batch.answer_id, "positive_ids": batch.positive_ids}
        loss = in_batch_softmax(
            question, answer, temperature=temperature, direction=self.settings.direction, **hard, **ids
        )
        metrics = self._metrics(question, answer, false_negative_mask(**ids))
        return loss, metrics | {"temperature": jnp.asarray(temperature)}

    def _encode_hard_negatives(self, params: dict, tokens: Tokens, keys: Array) -> Array:
        """Embeds tokens [B, K, L] of answers: [B, K, E]."""
        size, count, length = tokens.ids.shape
        flat = Tokens(ids=tokens.ids.reshape(-1, length), mask=tokens.mask.reshape(-1, length))
        own = jax.vmap(lambda n: fold(keys, n), out_axes=1)(jnp.arange(2, 2 + count)).reshape(-1)
        return self.model.encode(params, "answer", flat, own).reshape(size, count, -1)

    def _metrics(self, question: Array, answer: Array, excluded: Array | None) -> dict[str, Array]:
        size = question.shape[0]
        scores = jnp.matmul(question, answer.T, precision=jax.lax.Precision.HIGHEST)
        if excluded is None:
            excluded = jnp.zeros(scores.shape, dtype=bool)
        scores = jnp.where(excluded, -jnp.inf, scores)
        return {
            "in_batch_accuracy": jnp.mean(jnp.argmax(scores, axis=1) == jnp.arange(size)),
            "masked_fraction": jnp.sum(excluded) / max(size * (size - 1), 1),
        }
