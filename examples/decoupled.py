"""A custom method with the decoupled contrastive loss (Yeh et al. 2022), whose softmax leaves out the right answer.

endx train --config=examples/decoupled.py --workdir=runs/decoupled --config.data.path=FILE
"""

import jax
import jax.numpy as jnp

from endx_jax import losses
from endx_jax.methods import Method
from endx_jax.methods.config import base_config
from endx_jax.methods.dual import DualObjective, DualSettings


def decoupled_loss(question, answer, *, temperature, ids, tile=None, axis_name=None):
    """Computes the mean over questions of log sum_j exp(s_ij - s_ii), j != i; arguments as in `in_batch_softmax`."""

    def of_question(row, shared):
        (question, answer, ids), (answers, other_ids, temperature) = row, shared
        margins = (losses.dot(question, answers) - losses.dot(question, answer)) / temperature
        log_sum = losses.log_sum_exp(margins, jax.vmap(losses.is_negative, (None, 0))(ids, other_ids))
        return jnp.where(log_sum > -jnp.inf, log_sum, 0), {}

    ids = losses.pair_ids(len(question), axis_name, **ids)
    shared = *losses.all_gather((answer, ids), axis_name), temperature
    return losses.mean_over_rows(of_question, (question, answer, ids), shared, ids.where, tile, axis_name)


class DecoupledObjective(DualObjective):
    """Objective with the settings of the dual encoder and another loss."""

    def retrieval_loss(self, learned, rows, axis_name=None):
        """Computes loss and metrics of embeddings and of the batch's ids."""
        embedded, ids = rows
        cut = {"tile": self.execution.loss_tile, "axis_name": axis_name}
        return decoupled_loss(embedded.question, embedded.answer, ids=ids, **learned, **cut)


METHOD = Method("decoupled", DualSettings, DecoupledObjective)


def get_config():
    """Returns the default config with this method; `data.path` has to be set."""
    return base_config(DualSettings(name="decoupled", temperature=0.1, learn_temperature=True))
