r"""Sigmoid loss over all pairs of a batch (SigLIP, Zhai et al. 2023, arXiv 2303.15343, Eq. 1).

Each pair of a question and an answer is classified by itself as right (z = 1) or wrong (z = -1):

$$ L = \frac{1}{B} \sum_i \sum_j \log (1 + \exp(-z_{ij} (s_{ij} / \tau + b))), \quad s_{ij} = q_i \cdot a_j $$

There is no sum over candidates inside the logarithm, so a candidate that is excluded changes no other pair's loss.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from endx_jax.losses.arguments import SAME_SIDE, Ceiling, Guide, Prefixes
from endx_jax.losses.pair_scores import InBatch, Products, Rows, Side, scores_below
from endx_jax.losses.shard import AxisName
from endx_jax.losses.streaming import SUMS

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
    prefixes: Prefixes | None = None,
    same_side: Sequence[str] = (),
    ceiling: Ceiling | None = None,
    guide: Guide | None = None,
    guide_ceiling: Ceiling = Ceiling(),  # noqa: B008  # immutable
) -> tuple[Array, dict[str, Array]]:
    """Computes the binary cross-entropy of all pairs of a question and an answer of the batch.

    `bias` is added to the logits (SigLIP learns it, from -10, as nearly all pairs are wrong, and the temperature, from
    0.1). All other arguments are those of `in_batch_softmax`, but the loss has no direction. Pairs that are excluded
    are neither right nor wrong.

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
    batch = InBatch.of(
        {
            "question": question,
            "answer": answer,
            "hard_negatives": hard_negatives,
            "question_id": question_id,
            "answer_id": answer_id,
            "positive_ids": positive_ids,
            "hard_negative_ids": hard_negative_ids,
            "where": where,
        },
        temperature=temperature,
        bias=bias,
        prefixes=prefixes,
        same_side=same_side,
        ceiling=ceiling,
        guide=guide,
        guide_ceiling=guide_ceiling,
        tile=tile,
        axis_name=axis_name,
    )
    terms = ["a|q", *(SAME_SIDE[side] for side in same_side)] + (["h|q"] if hard_negatives is not None else [])
    reduced = {term: batch.reduce(term, SUMS, _wrong) for term in terms}
    rows = batch.rows["q"]
    assert rows.bias is not None
    right_logits = batch.right * rows.scale[:, None] + rows.bias[:, None]
    right = jnp.where(batch.shard.where[:, None], jax.nn.softplus(-right_logits), 0)
    sums = [
        sum((reduced[term][prefix].total for term in terms), start=right[:, prefix])
        for prefix in range(len(batch.widths))
    ]
    loss, by_prefix = batch.mean(sums)
    answers = reduced["a|q"][-1]
    limit = right_logits[:, -1] - batch.rounding * rows.scale
    return loss, batch.metrics(answers.kept, answers.highest < jax.nn.softplus(limit)) | by_prefix


def _wrong(products: Products, rows: Rows, columns: Side) -> tuple[Array, ...]:
    """Computes -log(1 - sigmoid(logit)) of all rows and columns."""
    assert rows.bias is not None
    shift = rows.bias[:, None]

    def cross_entropy(scores, prefix):
        del prefix
        return jax.nn.softplus(scores * rows.scale[:, None] + shift)

    return scores_below(products, rows, columns, cross_entropy)
