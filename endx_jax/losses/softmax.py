r"""In-batch sampled softmax loss (Dong et al. 2022, Eq. 1; L_dual in Wang et al. 2021, Eq. 1).

Every other answer of the global batch is a negative for a question:

$$ L = -\frac{1}{B} \sum_i \log \frac{\exp(s_{ii} / \tau)}{\sum_j \exp(s_{ij} / \tau)}, \quad s_{ij} = q_i \cdot a_j $$

With K hard negatives per question, as in t5x_retrieval, each question's sum has B + B K columns: the B answers and the
hard negatives of the whole batch. Each answer's sum still has the B questions. Other terms are in `losses.pair_scores`.

With margins m_ij = (s_ij - s_ii) / tau, the loss of a question is computed as log(1 + sum_{j != i} exp(m_ij)). So large
scores do not cancel, and losses near 0 remain precise.
"""

import jax
import jax.numpy as jnp

from endx_jax.checks import check_positive
from endx_jax.losses.arguments import SAME_SIDE, Options, TokenMasks
from endx_jax.losses.pair_scores import TO_ANSWERS, TO_QUESTIONS, Arrays, InBatch, rounding_of
from endx_jax.losses.rows import log_sum_exp
from endx_jax.losses.shard import AxisName
from endx_jax.numerics import at_least_float32
from endx_jax.settings import check_choice

Array = jax.Array

# Weights of the losses from question to answer and from answer to question.
WEIGHTS = {"question_to_answer": (1, 0), "answer_to_question": (0, 1), "sum": (1, 1), "mean": (0.5, 0.5)}
DIRECTIONS = tuple(WEIGHTS)
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
    token_masks: TokenMasks | None = None,
    options: Options | None = None,
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
      tile: rows of scores whose arrays are in memory at a time, for memory O(tile B + B E); they are recomputed for the
        gradient. None computes whole arrays of scores, [B, B] and [B, B K]. Both give the same values.
      axis_name: inside `jax.shard_map`, the mesh axis or axes over which the batch is split. Arrays are then this
        device's rows, and all devices return the loss of the whole batch.
      token_masks: tokens that count of embeddings of tokens, whose scores are MaxSim (`losses.maxsim`): `question` and
        `answer` are then [B, L, E], with an L of each, and `hard_negatives` [B, K, L, E]. The products of the tokens of
        `tile` rows and `tile` columns are in memory: `maxsim.tile_of` returns a tile for their lengths.
      options: other negatives, masks and corrections.

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
    check_positive("temperature", temperature)
    ids = question_id, answer_id, positive_ids, hard_negative_ids
    arrays = Arrays(question, answer, hard_negatives, *ids, where)
    batch = InBatch.of(arrays, options, token_masks, tile, axis_name)
    same_side = tuple(SAME_SIDE[side] for side in batch.options.same_side)
    to_answers = (*(TO_ANSWERS if hard_negatives is not None else TO_ANSWERS[:1]), *same_side)
    sums = [(1.0, (*to_answers, *TO_QUESTIONS))]
    if direction != JOINT:
        sums = [*zip(WEIGHTS[direction], (to_answers, (*TO_QUESTIONS, *same_side)), strict=True)]
        sums = [(weight, terms) for weight, terms in sums if weight]
    # The metrics need the scores of `a|q` in any direction.
    used = sorted({"a|q", *(term for _, terms in sums for term in terms)})

    def of_pair(pair, shared):
        """Returns the loss of a pair for each prefix [P], and its metrics by the longest."""
        candidates, temperature = shared
        rights, own_log_q = batch.right_scores(pair), pair.answer.log_q
        wrong = {term: batch.wrong_scores(term, pair, candidates) for term in used}

        def margins(term, prefix):
            # Subtract before the division by the temperature, so that large scores do not cancel.
            above = (wrong[term][prefix][0] - rights[prefix]) / temperature
            log_q = candidates[term[0]].log_q
            return above if log_q is None else above - log_q

        def loss(terms, prefix):
            total = jnp.zeros_like(rights[prefix])
            for term in terms:
                log_sum = log_sum_exp(margins(term, prefix), wrong[term][prefix][1])
                if own_log_q is not None and "a|q" in terms and term != "q|a":
                    # The right candidate is an answer. Those of `q|a` share it, so that its frequency cancels.
                    log_sum += own_log_q
                total += jax.nn.softplus(log_sum - total)
            return total

        losses = [sum(weight * loss(terms, prefix) for weight, terms in sums) for prefix in range(len(rights))]
        negative, limit = wrong["a|q"][-1][1], -rounding_of(pair.question.vectors, pair.answer.vectors) / temperature
        highest = jnp.max(margins("a|q", -1), where=negative, initial=-jnp.inf)
        correct = (highest if own_log_q is None else highest + own_log_q) < limit
        return jnp.stack(losses), jnp.sum(negative, dtype=jnp.int32), correct

    return batch.reduce(of_pair, jnp.asarray(temperature, at_least_float32(question).dtype))
