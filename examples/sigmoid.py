"""A custom method with SigLIP's sigmoid loss (Zhai et al. 2023).

endx train --config=examples/sigmoid.py --workdir=runs/sigmoid --config.data.path=FILE
"""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.losses.false_negatives import Marks, negatives
from endx_jax.losses.shard import Shard
from endx_jax.losses.streaming import row_sums
from endx_jax.methods import Method
from endx_jax.methods.config import base_config
from endx_jax.methods.objective import Objective, known_ids
from endx_jax.settings import check, key


@dataclasses.dataclass(frozen=True)
class SigmoidSettings:
    """`config.objective` of the method `sigmoid`."""

    name: str = key("sigmoid", "Name of the method.")
    temperature: float = key(0.1, "Initial value of the learned temperature (SigLIP: 0.1).")
    bias: float = key(-10.0, "Initial value of the learned bias of the logits (SigLIP: -10).")
    loss_tile: int = key(-1, "Rows and columns of score tiles; 0: dense; -1: automatic.", changes_results=False)

    def __post_init__(self):
        check(self.temperature > 0, f"objective.temperature is {self.temperature}; it must be positive")


def sigmoid_loss(question, answer, *, temperature, bias, ids, tile=None, axis_name=None):
    """Computes binary cross-entropy over all pairs of the batch; arguments and result as in `in_batch_softmax`."""
    shard = Shard.of(len(question), None, axis_name)
    own = jnp.sum(question * answer, axis=1) / temperature + bias
    marks = Marks(shard.index(), shard.where, ids["question_id"], ids["answer_id"], ids["positive_ids"])
    columns, column_marks = shard.all_gather((answer, marks._replace(positive_ids=None)))
    rows = question, jnp.broadcast_to(1 / temperature, own.shape), jnp.broadcast_to(bias, own.shape)
    others = row_sums(wrong_pairs, negatives, rows, columns, marks, column_marks, tile=tile or len(columns))
    count = shard.psum(jnp.sum(shard.where))
    return shard.psum(jnp.sum(jax.nn.softplus(-own) + others)) / count, {
        "right_pairs_found": shard.psum(jnp.sum(own > 0)) / count
    }


def wrong_pairs(rows, columns):
    """Computes -log(1 - sigmoid(logit)) for all rows and columns."""
    question, scale, bias = rows
    products = jnp.matmul(question, columns.T, precision=jax.lax.Precision.HIGHEST)
    return (jax.nn.softplus(products * scale[:, None] + bias[:, None]),)


class SigmoidObjective(Objective):
    """Objective of two towers with a learned temperature and bias."""

    def init(self, key, dual_encoder):
        """Returns the initial parameters."""
        learned = {"log_temperature": jnp.log(self.settings.temperature), "bias": jnp.asarray(self.settings.bias)}
        return super().init(key, dual_encoder) | learned

    def loss(self, params, embedded, batch, keys, step):
        """Computes loss and metrics of a global batch."""

        def compute(learned, rows, axis_name):
            question, answer, ids = rows
            cut = {"tile": self.execution.loss_tile, "axis_name": axis_name}
            return sigmoid_loss(question, answer, ids=ids, **learned, **cut)

        learned = {"temperature": jnp.exp(params["log_temperature"]), "bias": params["bias"]}
        return self.execution.reduce_rows(compute, learned, (embedded.question, embedded.answer, known_ids(batch)))


METHOD = Method("sigmoid", SigmoidSettings, SigmoidObjective)


def get_config():
    """Returns the default config with this method; `data.path` has to be set."""
    return base_config(SigmoidSettings())
