r"""In-batch sampled softmax loss (Dong et al. 2022, Eq. 1; L_dual in Wang et al. 2021, Eq. 1).

Every other answer of the global batch is a negative for a question:

$$ L = -\frac{1}{B} \sum_i \log \frac{\exp(s_{ii} / \tau)}{\sum_j \exp(s_{ij} / \tau)}, \quad s_{ij} = q_i \cdot a_j $$

With K hard negatives per question, as in t5x_retrieval, each question's sum has B + B K columns: the B answers and the
hard negatives of the whole batch. Each answer's sum still has the B questions. Other terms are in `losses.pair_scores`.

With margins m_ij = (s_ij - s_ii) / tau, the loss of a question is computed as log(1 + sum_{j != i} exp(m_ij)). So large
scores do not cancel, and losses near 0 remain precise.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from endx_jax.losses.arguments import SAME_SIDE, Ceiling, Guide, Prefixes, TokenMasks
from endx_jax.losses.pair_scores import InBatch, Products, Rows, Side, scores_below
from endx_jax.losses.shard import AxisName
from endx_jax.losses.streaming import SOFTMAXES
from endx_jax.settings import check_choice

Array = jax.Array

# Weights of the losses from question to answer and from answer to question.
WEIGHTS = {"question_to_answer": (1, 0), "answer_to_question": (0, 1), "sum": (1, 1), "mean": (0.5, 0.5)}
DIRECTIONS = tuple(WEIGHTS)
# Terms of each direction's sum, besides those of one side.
TO_ANSWERS, TO_QUESTIONS = ("a|q", "h|q"), ("q|a",)
JOINT = "joint"


def in_batch_softmax(
    question: Array,
    answer: Array,
    *,
    temperature: float | Array = 1.0,
    hard_negatives: Array | None = None,
    question_id: Array | None = None,
    answer_id: Array | None = None,
    positive_ids: Array | None = None,
    hard_negative_ids: Array | None = None,
    direction: str = "question_to_answer",
    where: Array | None = None,
    tile: int | None = None,
    axis_name: AxisName = None,
    prefixes: Prefixes | None = None,
    same_side: Sequence[str] = (),
    ceiling: Ceiling | None = None,
    guide: Guide | None = None,
    guide_ceiling: Ceiling = Ceiling(),  # noqa: B008  # immutable
    log_q: Array | None = None,
    token_masks: TokenMasks | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Computes the cross-entropy of each question's own answer among all answers of the batch.

    Scores are inner products; pass unit-norm embeddings for cosine similarity. If ids are given, the pairs of
    `false_negative_mask` are excluded from the sums.

    Every hard negative of the batch is a negative for all questions for which it is not known to be right, by
    `answer_id` or `positive_ids`. Repeated texts, as answers or hard negatives, are counted repeatedly, as in
    t5x_retrieval.

    Args:
      question: question embeddings [B, E]. Products are at least float32, with the highest matmul precision.
      answer: answer embeddings [B, E]; row i is the right answer of question i.
      temperature: divisor of the scores, a positive number or scalar array.
      hard_negatives: embeddings [B, K, E] of wrong answers; they are candidates for questions only.
      question_id: int32 [B], equal for equal questions; -1 if unknown.
      answer_id: int32 [B], equal for equal answers; -1 if unknown.
      positive_ids: int32 [B, P], ids of all right answers of each question, padded with -1.
      hard_negative_ids: int32 [B, K], ids of the hard negatives in the numbering of `answer_id`. -1 marks padding,
        whose embeddings are ignored even if NaN. None means that all hard negatives are valid.
      direction: `question_to_answer` (each question against all answers, as both papers print it),
        `answer_to_question`, the `sum` (as in t5x_retrieval) or `mean` of both, or `joint`: one sum over the candidates
        of both directions (GTE, Li et al. 2023).
      where: bool [B], pairs to include. Other pairs, with their hard negatives, are neither averaged nor negatives,
        even if NaN.
      tile: maximum rows and columns of a tile of scores, for memory O(B E + tile^2). Tiles are recomputed for the
        gradient. None computes whole arrays of scores, [B, B] and [B, B K]. Both give the same values.
      axis_name: inside `jax.shard_map`, the mesh axis or axes over which the batch is split. Arrays are then this
        device's rows, and all devices return the loss of the whole batch. Requires `tile`.
      prefixes: prefixes of the embeddings whose weighted losses are added (Matryoshka); None for the whole embeddings.
      same_side: `questions`, `answers` or both: each pair's sums get the scores of its question with the other
        questions, or of its answer with the other answers (GTE; Qwen3-Embedding has both). Pairs of which one answer is
        known to be right for the other question are excluded.
      ceiling: limit of wrong scores; those above it are excluded as false negatives, for each prefix by its own scores.
      guide: embeddings of the same texts by another model, which excludes false negatives likewise.
      guide_ceiling: limit of the guide's wrong scores; by default its right score.
      log_q: [B], logarithm of each answer's probability of being drawn, which is subtracted from its logits (Yi et al.
        2019, section 4.1), so that frequent answers are not penalised as negatives. It may be relative to the mean,
        as hard negatives and questions are not corrected.
      token_masks: tokens that count of embeddings of tokens, whose scores are MaxSim (`losses.maxsim`): `question` and
        `answer` are then [B, L, E], with an L of each, and `hard_negatives` [B, K, L, E]. All products of the tokens of
        a tile are in memory: `maxsim.tile_of` returns a tile for their lengths. Such embeddings have no `prefixes`.

    Returns:
      A tuple (loss, metrics). The loss is the mean over the included pairs, zero if there are none. The metrics have no
      gradient: `in_batch_accuracy`, the fraction of questions whose own answer has a higher logit than all other
      answers of the batch except those excluded; and `masked_fraction`, the fraction of off-diagonal pairs that are
      excluded. Both are those of the longest prefix. `prefix_loss/WIDTH` is the loss of a prefix, if there are several.

    Raises:
      EndxError: shapes do not agree, the temperature is not positive (checked outside `jax.jit` only), the direction is
        unknown, or ids are given without the arrays that they refer to.

    Examples:
      >>> question = answer = jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> loss, metrics = losses.in_batch_softmax(question, answer)
      >>> print(f"{loss:.4f}", metrics["in_batch_accuracy"])  # log(1 + exp(-1))
      0.3133 1.0
      >>> loss, metrics = losses.in_batch_softmax(question, answer, answer_id=jnp.array([7, 7]))
      >>> print(f"{loss:.4f}", metrics["masked_fraction"])  # the other answer is the same text, hence no negative
      0.0000 1.0
    """
    check_choice("direction", direction, (*DIRECTIONS, JOINT))
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
        prefixes=prefixes,
        same_side=same_side,
        ceiling=ceiling,
        guide=guide,
        guide_ceiling=guide_ceiling,
        log_q=log_q,
        token_masks=token_masks,
        tile=tile,
        axis_name=axis_name,
    )
    both = tuple(SAME_SIDE[side] for side in same_side)
    if direction == JOINT:
        sums = [(1.0, (*TO_ANSWERS, *TO_QUESTIONS, *both))]
    else:
        weighted = zip(WEIGHTS[direction], (TO_ANSWERS, TO_QUESTIONS), strict=True)
        sums = [(weight, (*terms, *both)) for weight, terms in weighted if weight]
    used = {term for _, terms in sums for term in terms if term != "h|q" or hard_negatives is not None}
    statistics = {term: batch.reduce(term, SOFTMAXES, _margins) for term in sorted(used | {"a|q"})}

    def losses(prefix: int) -> Array:
        total = jnp.zeros_like(batch.right[:, 0])
        for weight, terms in sums:
            parts = {term: statistics[term][prefix].log_sum_exp for term in terms if term in used}
            if batch.log_q is not None and "a|q" in terms:
                # The right candidate is an answer. Those of `q|a` share it, so that its frequency cancels.
                parts = {term: part if term == "q|a" else part + batch.log_q for term, part in parts.items()}
            total += weight * _row_losses(list(parts.values()))
        return total

    loss, by_prefix = batch.mean([losses(prefix) for prefix in range(len(batch.widths))])
    answers = statistics["a|q"][-1]
    highest = answers.highest if batch.log_q is None else answers.highest + batch.log_q
    return loss, batch.metrics(answers.kept, highest < -batch.rounding * batch.rows["q"].scale) | by_prefix


def _margins(products: Products, rows: Rows, columns: Side) -> tuple[Array, ...]:
    """Computes the margins of the columns' logits over the row's right logit before its own correction."""

    def margins(scores, prefix):
        # Subtract before the division by the temperature, so that large scores do not cancel.
        differences = (scores - rows.right[:, prefix, None]) * rows.scale[:, None]
        return differences if columns.log_q is None else differences - columns.log_q[None, :]

    return scores_below(products, rows, columns, margins)


def _row_losses(others: list[Array]) -> Array:
    """Returns log(1 + sum of the exponentials of all margins) [R], given log-sum-exps [R] of sets of columns."""
    losses = jnp.zeros_like(others[0])
    for log_sum_exp in others:
        losses += jax.nn.softplus(log_sum_exp - losses)
    return losses
