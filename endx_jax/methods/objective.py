"""Base class of objectives: (params, batch, rng, step) -> (loss, metrics)."""

import abc
import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from endx_jax.batch import Batch, Texts
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.parallel.execution import Execution

Array = jax.Array
LossAndMetrics = tuple[Array, dict[str, Array]]

# One device, nothing in chunks: a pure function of whole arrays.
UNCUT = Execution()


@flax.struct.dataclass
class Embeddings:
    """Embeddings of B pairs.

    Attributes:
      question: [B, E].
      answer: [B, E].
      penalty: [B], of the poolings of both towers.
      hard_negatives: [B, K, E]; None if the batch has none.
    """

    question: Array
    answer: Array
    penalty: Array
    hard_negatives: Array | None = None


@dataclasses.dataclass(frozen=True)
class Objective(abc.ABC):
    """Loss of a method as a function of parameters and a global batch.

    The parameters are a tree with the towers' under `dual_encoder`; a method adds others in `init`. A step calls
    `embed` on chunks of rows, in parallel, and then `loss` on the embeddings of the whole batch.

    Attributes:
      model: the towers.
      settings: the method's section of the config.
      execution: division of a step over devices and chunks.
      steps_per_epoch: optimizer steps in one pass over the training pairs.
    """

    model: DualEncoder
    settings: Any
    execution: Execution = UNCUT
    steps_per_epoch: float = 0.0

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Returns the initial parameters: those of the given towers, and new ones of the method."""
        del key
        return {"dual_encoder": dual_encoder}

    def prepare(self, execution: Execution, steps_per_epoch: float):
        """Returns the objective with the execution of a run."""
        return dataclasses.replace(self, execution=execution, steps_per_epoch=steps_per_epoch)

    def __call__(self, params: dict, batch: Any, rng: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch, and the metrics to log.

        Args:
          params: of this objective.
          batch: B pairs.
          rng: the run's key; with the step and the row it gives each example's key.
          step: int32 scalar.
        """
        keys = example_keys(rng, step, batch.question_id.shape[0])
        embedded = self.execution.map_rows(self.embed, self.embed_params(params), (batch, keys), cost=tokens_of_rows)
        return self.loss(params, embedded, batch, keys, step)

    def embed_params(self, params: dict) -> dict:
        """Returns the parameters that `embed` reads."""
        return params

    def embed(self, params: dict, rows: tuple[Any, Array]) -> Any:
        """Embeds pairs, given their keys [B], each row independently of the others."""
        batch, keys = rows
        towers = params["dual_encoder"]
        question, of_question = self.model.encode_with_penalty(towers, "question", batch.question, fold(keys, 0))
        answer, of_answer = self.model.encode_with_penalty(towers, "answer", batch.answer, fold(keys, 1))
        hard = None
        if batch.hard_negatives is not None:
            hard = self._embed_hard_negatives(towers, batch.hard_negatives, keys)
        return Embeddings(question, answer, of_question + of_answer, hard)

    @abc.abstractmethod
    def loss(self, params: dict, embedded: Any, batch: Any, keys: Array, step: Array) -> LossAndMetrics:
        """Computes loss and metrics from the embeddings of a global batch.

        Args:
          params: of this objective.
          embedded: the result of `embed` for all B rows.
          batch: B pairs; the loss reads their ids.
          keys: [B], one per example.
          step: int32 scalar.
        """

    def _embed_hard_negatives(self, towers: dict, texts: Texts, keys: Array) -> Array:
        """Embeds texts [B, K] of answers: [B, K, E]."""
        size, count = texts.lengths.shape
        flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), texts)
        own = jax.vmap(lambda n: fold(keys, n), out_axes=1)(jnp.arange(2, 2 + count)).reshape(-1)
        return self.model.encode(towers, "answer", flat, own).reshape(size, count, -1)


def known_ids(batch: Batch) -> dict[str, Array]:
    """Returns the ids that identify false negatives, by the losses' argument names."""
    ids: dict = {"question_id": batch.question_id, "answer_id": batch.answer_id, "positive_ids": batch.positive_ids}
    if batch.hard_negatives is not None:
        ids["hard_negative_ids"] = batch.hard_negative_ids
    return ids


def tokens_of_rows(rows: tuple[Any, Array]) -> Array:
    """Counts the real tokens of each row of a batch, int32 [B], hard negatives included."""
    batch, _ = rows
    counts = [side.lengths.reshape(len(batch.question_id), -1).sum(axis=1) for side in batch.sides]
    return sum(counts[1:], start=counts[0])
