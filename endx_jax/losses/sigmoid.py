r"""Sigmoid loss over all pairs of a batch (SigLIP, Zhai et al. 2023, arXiv 2303.15343, Eq. 1).

Each pair of a question and an answer is classified by itself as right (z = 1) or wrong (z = -1):

$$ L = \frac{1}{B} \sum_i \sum_j \log (1 + \exp(-z_{ij} (s_{ij} / \tau + b))), \quad s_{ij} = q_i \cdot a_j $$

There is no sum over candidates inside the logarithm, so a candidate that is excluded changes no other pair's loss.
"""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_positive
from endx_jax.losses.arguments import SAME_SIDE, Options
from endx_jax.losses.pair_scores import TO_ANSWERS, Arrays, InBatch, rounding_of
from endx_jax.losses.shard import AxisName
from endx_jax.numerics import at_least_float32

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

    Raises:
      EndxError: as `in_batch_softmax`.

    Examples:
      >>> question = answer = jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> loss, metrics = losses.in_batch_sigmoid(question, answer, temperature=1.0, bias=0.0)
      >>> print(f"{loss:.4f}")  # log(1 + exp(-1)) of a right pair and log(2) of a wrong one
      1.0064
    """
    check_positive("temperature", temperature)
    ids = question_id, answer_id, positive_ids, hard_negative_ids
    arrays = Arrays(question, answer, hard_negatives, *ids, where)
    batch = InBatch.of(arrays, options, None, tile, axis_name)
    terms = (*TO_ANSWERS[: 1 if hard_negatives is None else 2], *(SAME_SIDE[x] for x in batch.options.same_side))

    def of_pair(pair, shared):
        """Returns the loss of a pair for each prefix [P], and its metrics by the longest."""
        candidates, (temperature, bias) = shared
        rights = [x / temperature + bias for x in batch.right_scores(pair)]
        wrong = {term: batch.wrong_scores(term, pair, candidates) for term in terms}

        def losses_of(term, prefix):
            scores, negative = wrong[term][prefix]
            return jnp.where(negative, jax.nn.softplus(scores / temperature + bias), 0)

        losses = [
            jax.nn.softplus(-right) + sum(jnp.sum(losses_of(term, prefix)) for term in terms)
            for prefix, right in enumerate(rights)
        ]
        highest = jnp.max(losses_of("a|q", -1), initial=0)
        correct = highest < jax.nn.softplus(
            rights[-1] - rounding_of(pair.question.vectors, pair.answer.vectors) / temperature
        )
        return jnp.stack(losses), jnp.sum(wrong["a|q"][-1][1], dtype=jnp.int32), correct

    return batch.reduce(of_pair, jnp.asarray([temperature, bias], at_least_float32(question).dtype))
