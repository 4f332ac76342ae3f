r"""Sigmoid loss over all pairs of a batch (SigLIP, Zhai et al. 2023, arXiv 2303.15343, Eq. 1).

Each pair of a question and an answer is classified by itself as right (z = 1) or wrong (z = -1):

$$ L = \frac{1}{B} \sum_i \sum_j \log (1 + \exp(-z_{ij} (s_{ij} / \tau + b))), \quad s_{ij} = q_i \cdot a_j $$

There is no sum over candidates inside the logarithm, so a candidate that is excluded changes no other pair's loss.
"""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.checks import check_positive
from endx_jax.losses.arguments import Arrays, Options
from endx_jax.losses.pair_scores import Scores, mean_over_pairs, terms_by_direction
from endx_jax.losses.shard import AxisName

Array = jax.Array


def in_batch_sigmoid(
    question: Array,
    answer: Array,
    *,
    temperature: float | Array = 0.1,
    bias: float | Array = -10.0,
    hard_negatives: Array | None = None,
    question_id: Array | None = None,
    answer_id: Array | None = None,
    positive_ids: Array | None = None,
    hard_negative_ids: Array | None = None,
    where: Array | None = None,
    tile: int | None = None,
    axis_name: AxisName = None,
    options: Options | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Computes the binary cross-entropy of all pairs of a question and an answer of the batch.

    `bias` is added to the logits (SigLIP learns it, from -10, as nearly all pairs are wrong, and the temperature, from
    0.1). All other arguments are those of `in_batch_softmax`, but the loss has no direction, and `options.log_q` is not
    used. Pairs that are excluded are neither right nor wrong.

    Returns:
      A tuple (loss, metrics) as that of `in_batch_softmax`; the loss is a sum over all pairs divided by the number of
      included questions.

    Examples:
      >>> question = answer = jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> loss, metrics = losses.in_batch_sigmoid(question, answer, temperature=1.0, bias=0.0)
      >>> print(f"{loss:.4f}")  # log(1 + exp(-1)) of a right pair and log(2) of a wrong one
      1.0064
    """
    check_positive("temperature", temperature)
    ids = question_id, answer_id, positive_ids, hard_negative_ids
    arrays = Arrays(question, answer, hard_negatives, *ids, where)
    options = dataclasses.replace(options or Options(), log_q=None)
    terms, _ = terms_by_direction(arrays, options)

    def loss_of(scores: Scores, temperature: Array, bias: Array) -> Array:
        loss = jax.nn.softplus(-(scores.right / temperature + bias))
        for term in terms:
            wrong, negative = scores.wrong[term]
            loss += jnp.sum(jnp.where(negative, jax.nn.softplus(wrong / temperature + bias), 0))
        return loss

    return mean_over_pairs(loss_of, (temperature, bias), terms, arrays, options, tile, axis_name)
