"""A custom method with the decoupled contrastive loss (Yeh et al. 2022), whose softmax leaves out the right answer.

endx train --config=examples/decoupled.py --workdir=runs/decoupled --config.data.path=FILE
"""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.losses.false_negatives import Marks, negatives
from endx_jax.losses.shard import Shard
from endx_jax.losses.streaming import SOFTMAX, reduce_scores
from endx_jax.methods import Method, MethodSettings
from endx_jax.methods.config import base_config
from endx_jax.methods.objective import Objective, known_ids
from endx_jax.settings import key, require


@dataclasses.dataclass(frozen=True)
class DecoupledSettings(MethodSettings):
    """`config.objective` of the method `decoupled`."""

    name: str = key("decoupled", "Name of the method.")
    temperature: float = key(0.1, "Initial value of the learned temperature (Yeh et al.: 0.1).")
    loss_tile: int = key(-1, "Rows and columns of score tiles; 0: dense; -1: automatic.", changes_results=False)

    def __post_init__(self):
        require(self.temperature > 0, f"objective.temperature is {self.temperature}; it must be positive")


def decoupled_loss(question, answer, *, temperature, ids, tile=None, axis_name=None):
    """Computes the mean over questions of log sum_j exp(s_ij - s_ii), j != i; arguments as in `in_batch_softmax`."""
    shard = Shard.of(len(question), None, axis_name)
    marks = Marks(shard.index(), shard.where, ids["question_id"], ids["answer_id"], ids["positive_ids"])
    columns, column_marks = shard.all_gather((answer, marks._replace(positive_ids=None)))
    own = jnp.sum(question * answer, axis=1)
    rows = question, own, jnp.broadcast_to(1 / temperature, own.shape)
    others = reduce_scores(SOFTMAX, margins, negatives, rows, columns, marks, column_marks, tile=tile)
    losses = jnp.where(others.kept > 0, others.log_sum_exp, 0)
    count = shard.psum(jnp.sum(shard.where))
    return shard.psum(jnp.sum(losses)) / count, {"in_batch_accuracy": shard.psum(jnp.sum(others.highest < 0)) / count}


def margins(rows, columns):
    """Computes the scores of all rows and columns over those of the right answers."""
    question, own, scale = rows
    products = jnp.matmul(question, columns.T, precision=jax.lax.Precision.HIGHEST)
    return ((products - own[:, None]) * scale[:, None],)


class DecoupledObjective(Objective):
    """Objective of two towers with a learned temperature."""

    def init(self, key, dual_encoder):
        """Returns the initial parameters."""
        return super().init(key, dual_encoder) | {"log_temperature": jnp.log(self.settings.temperature)}

    def loss(self, params, embedded, batch, keys, step):
        """Computes loss and metrics of a global batch."""

        def compute(temperature, rows, axis_name):
            question, answer, ids = rows
            cut = {"tile": self.execution.loss_tile, "axis_name": axis_name}
            return decoupled_loss(question, answer, temperature=temperature, ids=ids, **cut)

        rows = (embedded.question, embedded.answer, known_ids(batch))
        return self.execution.reduce_rows(compute, jnp.exp(params["log_temperature"]), rows)


METHOD = Method("decoupled", DecoupledSettings, DecoupledObjective)


def get_config():
    """Returns the default config with this method; `data.path` has to be set."""
    return base_config(DecoupledSettings())
