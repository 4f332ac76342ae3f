"""Base class of the objectives: functions (params, batch, rng, step) -> (loss, metrics)."""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from endx_jax.batch import Batch
from endx_jax.models.dropout import example_keys, fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.parallel.execution import Execution

Array = jax.Array
LossAndMetrics = tuple[Array, dict[str, Array]]

# The default: one device and no chunks, so the objective is a pure function of whole arrays.
UNCUT = Execution()


@flax.struct.dataclass
class Embeddings:
    """Embeddings of B pairs; `TokenVectors` of towers with an embedding for each token.

    Attributes:
      question: embeddings [B, E] of the questions.
      answer: embeddings [B, E] of the answers.
      hard_negatives: embeddings [B, K, E] of the hard negatives; None if the batch has none.
    """

    question: Array
    answer: Array
    hard_negatives: Array | None = None


@dataclasses.dataclass(frozen=True)
class Objective:
    """A method's loss as a function of parameters and a global batch.

    The parameter tree holds the towers under `dual_encoder`; `init` of a method adds its own entries. A step calls
    `embed` on chunks of rows in parallel, and then `loss` on the embeddings of the whole batch. A method defines
    `loss`, or `retrieval_loss`, which `loss` calls with the rows of each device.

    Attributes:
      model: the towers.
      settings: the method's section of the config.
      execution: division of a step into devices and chunks.
      steps_per_epoch: optimizer steps in one pass over the training pairs.

    Examples:
      >>> from endx_jax.methods.objective import Embeddings, Objective
      >>> class RightPairs(Objective):
      ...     def loss(self, params, embedded, batch, keys, step):
      ...         return -jnp.mean(jnp.sum(embedded.question * embedded.answer, axis=1)), {}
      >>> objective = RightPairs(model=None, settings=None)  # a run gives the towers and `config.objective`
      >>> embedded = Embeddings(question=jnp.eye(2), answer=jnp.array([[1.0, 0.0], [1.0, 0.0]]))
      >>> print(objective.loss({}, embedded, batch=None, keys=None, step=0)[0])
      -0.5
    """

    model: DualEncoder
    settings: Any
    execution: Execution = UNCUT
    steps_per_epoch: float = 0.0

    def init(self, key: Array, dual_encoder: dict) -> dict:
        """Returns the initial parameters: the given towers and newly drawn parameters of the method."""
        del key
        return {"dual_encoder": dual_encoder}

    @property
    def frozen(self) -> tuple[str, ...]:
        """Patterns of the paths of parameters that the method does not train, besides `optimizer.frozen`."""
        return ()

    def inherit(self, params: dict) -> dict:
        """Returns initial parameters with those that the method takes from another run; `init` reads no files."""
        return params

    def for_run(self, execution: Execution, steps_per_epoch: float):
        """Returns the objective with the execution and the epoch length of a run."""
        return dataclasses.replace(self, execution=execution, steps_per_epoch=steps_per_epoch)

    def __call__(self, params: dict, batch: Any, rng: Array, step: Array) -> LossAndMetrics:
        """Computes the loss of one global batch and the metrics to log.

        Args:
          params: parameters of this objective.
          batch: B pairs.
          rng: the run's PRNG key; each example's key is folded from it, the step and the row.
          step: int32 scalar.
        """
        keys = example_keys(rng, step, batch.question_id.shape[0])
        embedded = self.execution.map_rows(self.embed, self.embed_params(params), (batch, keys), cost=tokens_of_rows)
        return self.loss(params, embedded, batch, keys, step)

    def embed_params(self, params: dict) -> dict:
        """Returns the parameters that `embed` reads."""
        return params

    def embed(self, params: dict, rows: tuple[Any, Array]) -> Any:
        """Embeds pairs, given as (batch, dropout keys [B]); each row is independent of the others."""
        batch, keys = rows
        towers = params["dual_encoder"]
        sides = [("question", batch.question, fold(keys, 0)), ("answer", batch.answer, fold(keys, 1))]
        if batch.hard_negatives is None:
            return Embeddings(*self.model.of_sides(self.model.encode, towers, sides, batch.packing))
        size, count = batch.hard_negatives.lengths.shape
        flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), batch.hard_negatives)
        hard_keys = jax.vmap(lambda n: fold(keys, n), out_axes=1)(jnp.arange(2, 2 + count)).reshape(-1)
        sides.append(("answer", flat, hard_keys))
        question, answer, hard = self.model.of_sides(self.model.encode, towers, sides, batch.packing)
        return Embeddings(question, answer, jax.tree.map(lambda x: x.reshape(size, count, *x.shape[1:]), hard))

    def loss(self, params: dict, embedded: Any, batch: Any, keys: Array, step: Array) -> LossAndMetrics:
        """Computes the loss and metrics from the embeddings of a global batch, by default by `retrieval_loss`.

        Args:
          params: parameters of this objective.
          embedded: results of `embed` for all B rows.
          batch: B pairs; the loss reads their ids.
          keys: PRNG keys [B], one for each example.
          step: int32 scalar.
        """
        del keys, step
        learned, rows = self.learned(params), (embedded, loss_arrays(batch))
        loss, metrics = self.execution.reduce_rows(self.retrieval_loss, learned, rows)
        return loss, metrics | learned

    def learned(self, params: dict) -> dict[str, Array]:
        """Returns the scalars that `retrieval_loss` takes and the log shows, such as the temperature."""
        del params
        return {}

    def retrieval_loss(self, learned: dict[str, Array], rows: tuple[Any, dict[str, Any]], axis_name=None) -> Any:
        """Computes the loss and its metrics from `learned` and rows of the batch: embeddings and `loss_arrays`."""
        raise NotImplementedError(f"{type(self).__name__} must define loss or retrieval_loss")


def known_ids(batch: Batch) -> dict[str, Array]:
    """Returns the ids of questions and answers that identify false negatives, by argument name of the losses."""
    return {name: getattr(batch, name) for name in ("question_id", "answer_id", "positive_ids")}


def loss_arrays(batch: Batch) -> dict[str, Any]:
    """Returns the arrays of a batch that a loss takes beside embeddings, by argument name."""
    mined = {} if batch.hard_negatives is None else {"hard_negative_ids": batch.hard_negative_ids}
    return known_ids(batch) | mined | dict(batch.extra)


def tokens_of_rows(rows: tuple[Any, Array]) -> Array:
    """Counts the tokens of each row of a batch without padding, int32 [B]; includes hard negatives."""
    batch, _ = rows
    counts = [side.lengths.reshape(len(batch.question_id), -1).sum(axis=1) for side in batch.sides]
    return sum(counts[1:], start=counts[0])
