"""The hinge loss of all wrong answers in the batch, as a method.

endx train --config=examples/hinge.py --workdir=runs/hinge --config.data.path=FILE
"""

import dataclasses

import jax.numpy as jnp

from endx_jax.losses import false_negative_mask
from endx_jax.methods import Method, MethodSettings
from endx_jax.methods.config import base_config
from endx_jax.methods.objective import Objective, known_ids
from endx_jax.settings import key


@dataclasses.dataclass(frozen=True)
class HingeSettings(MethodSettings):
    """`config.objective` of the method."""

    name: str = key("hinge", "Name of the method.")
    margin: float = key(0.2, "Margin between the scores of right and wrong answers.")


class Hinge(Objective):
    """The hinge loss of the scores over the global batch."""

    def loss(self, params, embedded, batch, keys, step):
        """Returns the loss and the share of answers that are wrong for a question."""
        scores = jnp.matmul(embedded.question, embedded.answer.T, precision="highest")
        over = self.settings.margin + scores - jnp.diag(scores)[:, None]
        wrong = ~(jnp.eye(len(scores), dtype=bool) | false_negative_mask(**known_ids(batch)))
        return jnp.sum(jnp.maximum(over, 0), where=wrong) / len(scores), {"wrong": jnp.mean(wrong)}


METHOD = Method("hinge", HingeSettings, Hinge)


def get_config():
    """Returns the default settings with this method."""
    return base_config(HingeSettings())
