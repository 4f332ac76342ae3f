"""The dual encoder's objective: in-batch sampled softmax over the global batch (Dong et al. 2022, section 3)."""

import dataclasses
import math

import flax.struct
import jax
import jax.numpy as jnp

from endx_jax.batch import Batch, Texts
from endx_jax.losses.contrastive import DIRECTIONS, in_batch_softmax_and_metrics
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.parallel.execution import Execution
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
    orthogonality: float = key(0.0, "weight of multi-hop pooling's penalty on hops that look alike (Lin et al.: 1)")
    loss_tile: int = key(
        -1,
        "side of the score tiles that the losses are streamed over; 0: dense; -1: dense while the batch is small",
        changes_results=False,
    )

    def __post_init__(self):
        check(self.temperature > 0, f"objective.temperature is {self.temperature}; it must be positive")
        check_choice("objective.direction", self.direction, DIRECTIONS)
        check(self.orthogonality >= 0, f"objective.orthogonality is {self.orthogonality}; it must not be negative")
        check(self.loss_tile >= -1, f"objective.loss_tile is {self.loss_tile}; it must be positive, 0 or -1")


@flax.struct.dataclass
class Embeddings:
    """What the towers make of B pairs.

    Attributes:
      question: [B, E].
      answer: [B, E].
      penalty: [B], of the poolings of both towers.
      hard_negatives: [B, K, E]; None where the batch has none.
    """

    question: Array
    answer: Array
    penalty: Array
    hard_negatives: Array | None = None


# As a pure function of whole arrays.
UNCUT = Execution()


@dataclasses.dataclass(frozen=True)
class DualObjective:
    """A dual encoder trained by in-batch softmax.

    Parameters are `{"dual_encoder": ...}`, and `log_temperature` where that is learned.

    Attributes:
      model: the towers.
      settings: of the loss.
      execution: how the work of a step is cut up.
    """

    model: DualEncoder
    settings: DualSettings
    execution: Execution = UNCUT

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """The objective's parameters around those of its dual encoder; `key` draws what else a method has."""
        del key
        params: dict = {"dual_encoder": dual_encoder}
        if self.settings.learn_temperature:
            params["log_temperature"] = jnp.asarray(math.log(self.settings.temperature), jnp.float32)
        return params

    def prepare(self, execution: Execution, steps_per_epoch: float) -> "DualObjective":
        """The same objective, as a run will compute it."""
        del steps_per_epoch
        return dataclasses.replace(self, execution=execution)

    def __call__(self, params: dict, batch: Batch, rng: Array, step: Array) -> tuple[Array, dict[str, Array]]:
        """The loss of one global batch, and what to log.

        Args:
          params: of this objective.
          batch: B pairs.
          rng: the run's key; with the step and the row it makes each example's dropout key.
          step: int32 scalar.

        Returns:
          The scalar loss; metrics `in_batch_accuracy`, `masked_fraction` (see `in_batch_softmax_and_metrics`),
          `temperature`, and `orthogonality_penalty` where it has a weight.
        """
        keys = example_keys(rng, step, batch.question_id.shape[0])
        embeddings = self.execution.map_rows(self.embed, params, (batch, keys), cost=tokens_of_rows)
        temperature = self.temperature(params)

        def compute(rows, axis_name):
            return self.retrieval_loss(*rows, axis_name=axis_name)

        rows = (at_temperature(embeddings, temperature), self.known_ids(batch))
        loss, metrics = self.execution.reduce_rows(compute, rows)
        return self.with_penalty(loss, metrics | {"temperature": temperature}, embeddings.penalty)

    def embed(self, params: dict, rows: tuple[Batch, Array]) -> Embeddings:
        """Embeds pairs, given with their dropout keys [B], each by itself."""
        batch, keys = rows
        towers = params["dual_encoder"]
        question, of_question = self.model.encode_with_penalty(towers, "question", batch.question, fold(keys, 0))
        answer, of_answer = self.model.encode_with_penalty(towers, "answer", batch.answer, fold(keys, 1))
        hard = None
        if batch.hard_negatives is not None:
            hard = self._embed_hard_negatives(towers, batch.hard_negatives, keys)
        return Embeddings(question, answer, of_question + of_answer, hard)

    def retrieval_loss(
        self, embeddings: Embeddings, ids: dict[str, Array], *, axis_name=None
    ) -> tuple[Array, dict[str, Array]]:
        """The in-batch softmax at temperature 1, and its metrics."""
        settings = self.settings
        masks = {name: ids[name] for name in ids if settings.mask_false_negatives or name == "hard_negative_ids"}
        return in_batch_softmax_and_metrics(
            embeddings.question,
            embeddings.answer,
            hard_negatives=embeddings.hard_negatives,
            direction=settings.direction,
            tile=self.execution.loss_tile,
            axis_name=axis_name,
            **masks,
        )

    def with_penalty(self, loss: Array, metrics: dict[str, Array], penalty: Array) -> tuple[Array, dict[str, Array]]:
        """Loss and metrics with the poolings' penalty [B], where it has a weight."""
        if not self.settings.orthogonality:
            return loss, metrics
        mean = jnp.mean(penalty)
        return loss + self.settings.orthogonality * mean, metrics | {"orthogonality_penalty": mean}

    def temperature(self, params: dict) -> Array:
        """The temperature: of the settings, or learned."""
        if self.settings.learn_temperature:
            return jnp.exp(params["log_temperature"])
        return jnp.asarray(self.settings.temperature)

    def known_ids(self, batch: Batch) -> dict[str, Array]:
        """The ids by which false negatives are known, named as the losses name them."""
        ids: dict = {"question_id": batch.question_id, "answer_id": batch.answer_id, "positive_ids": batch.positive_ids}
        if batch.hard_negatives is not None:
            ids["hard_negative_ids"] = batch.hard_negative_ids
        return ids

    def _embed_hard_negatives(self, towers: dict, texts: Texts, keys: Array) -> Array:
        """Embeds texts [B, K] of answers: [B, K, E]."""
        size, count = texts.lengths.shape
        flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), texts)
        own = jax.vmap(lambda n: fold(keys, n), out_axes=1)(jnp.arange(2, 2 + count)).reshape(-1)
        return self.model.encode(towers, "answer", flat, own).reshape(size, count, -1)


def tokens_of_rows(rows: tuple[Batch, Array]) -> Array:
    """The real tokens of each pair, int32 [B], hard negatives included."""
    batch, _ = rows
    counts = [side.lengths.reshape(len(batch.question_id), -1).sum(axis=1) for side in batch.sides]
    return sum(counts[1:], start=counts[0])


def at_temperature(embeddings: Embeddings, temperature: Array) -> Embeddings:
    """Divides the questions by the temperature, and so all their scores: the losses need not know it."""
    return dataclasses.replace(embeddings, question=embeddings.question / temperature)
