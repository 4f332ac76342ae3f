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

from endx_jax.batch import TokenVectors
from endx_jax.checks import check_positive
from endx_jax.losses.arguments import Arrays, Options
from endx_jax.losses.pair_scores import Scores, mean_over_pairs, terms_by_direction
from endx_jax.losses.rows import log_sum_exp
from endx_jax.losses.shard import AxisName
from endx_jax.settings import check_choice

Array = jax.Array

# Weights of the losses from question to answer and from answer to question.
WEIGHTS = {"question_to_answer": (1, 0), "answer_to_question": (0, 1), "sum": (1, 1), "mean": (0.5, 0.5)}
DIRECTIONS = tuple(WEIGHTS)
JOINT = "joint"


def in_batch_softmax(
    question: Array | TokenVectors,
    answer: Array | TokenVectors,
    *,
    temperature: float | Array = 1.0,
    hard_negatives: Array | TokenVectors | None = None,
    question_id: Array | None = None,
    answer_id: Array | None = None,
    positive_ids: Array | None = None,
    hard_negative_ids: Array | None = None,
    direction: str = "question_to_answer",
    where: Array | None = None,
    tile: int | None = None,
    axis_name: AxisName = None,
    options: Options | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Computes the cross-entropy of each question's own answer among all answers of the batch.

    Scores are inner products; pass unit-norm embeddings for cosine similarity. If ids are given, the pairs of
    `false_negative_mask` are excluded from the sums.

    Every hard negative of the batch is a negative for all questions for which it is not known to be right, by
    `answer_id` or `positive_ids`. Repeated texts, as answers or hard negatives, are counted repeatedly, as in
    t5x_retrieval.

    Args:
      question: question embeddings [B, E], or those of tokens [B, L, E] (`TokenVectors`), whose scores are MaxSim
        (`losses.maxsim`; the products of the tokens of `tile` rows and `tile` columns are in memory, and
        `maxsim.tile_of` returns a tile for their lengths). Products are at least float32, with the highest matmul
        precision.
      answer: answer embeddings [B, E]; row i is the right answer of question i.
      temperature: divisor of the scores, a positive number or scalar array (checked outside `jax.jit` only).
      hard_negatives: embeddings [B, K, E] of wrong answers; they are candidates for questions only.
      question_id: int32 [B], equal for equal questions; -1 if unknown.
      answer_id: int32 [B], equal for equal answers; -1 if unknown.
      positive_ids: int32 [B, P], ids of all right answers of each question, padded with -1; needs `answer_id`.
      hard_negative_ids: int32 [B, K], ids of the hard negatives in the numbering of `answer_id`. -1 marks padding,
        whose embeddings are ignored even if NaN. None means that all hard negatives are valid.
      direction: `question_to_answer` (each question against all answers, as both papers print it),
        `answer_to_question`, the `sum` (as in t5x_retrieval) or `mean` of both, or `joint`: one sum over the candidates
        of both directions (GTE, Li et al. 2023).
      where: bool [B], pairs to include. Other pairs, with their hard negatives, are neither averaged nor negatives,
        even if NaN.
      tile: rows of scores whose arrays are in memory at a time, for memory O(tile B + B E); gradients are computed with
        the values. None computes whole arrays of scores, [B, B] and [B, B K]. Both give the same values.
      axis_name: inside `jax.shard_map`, the mesh axis or axes over which the batch is split. Arrays are then this
        device's rows, and all devices return the loss of the whole batch.
      options: other negatives, masks and corrections.

    Returns:
      A tuple (loss, metrics). The loss is the mean over the included pairs, zero if there are none. The metrics have no
      gradient: `in_batch_accuracy`, the fraction of questions whose own answer has a higher logit than all other
      answers of the batch except those excluded; and `masked_fraction`, the fraction of off-diagonal pairs that are
      excluded. Both are those of the longest prefix. `prefix_loss/WIDTH` is the loss of a prefix, if there are several.

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
    arrays, options = Arrays(question, answer, hard_negatives, *ids, where), options or Options()
    to_answers, to_questions = terms_by_direction(arrays, options)
    sums = [(1.0, (*to_answers, "q|a"))]
    if direction != JOINT:
        both = zip(WEIGHTS[direction], (to_answers, to_questions), strict=True)
        sums = [(weight, terms) for weight, terms in both if weight]

    def loss_of(scores: Scores, temperature: Array) -> Array:
        def log_sum(terms, term):
            found = log_sum_exp(scores.margins(term, temperature), scores.wrong[term][1])
            # The right candidate is an answer if some of the wrong ones are. Those of `q|a` share it, so that its
            # frequency cancels.
            return found + scores.own_log_q if "a|q" in terms and term != "q|a" else found

        def loss(terms):
            total = jnp.zeros_like(scores.right)
            for term in terms:
                total = jnp.logaddexp(total, log_sum(terms, term))
            return total

        return sum(weight * loss(terms) for weight, terms in sums)

    used = {term for _, terms in sums for term in terms}
    return mean_over_pairs(loss_of, (temperature,), used, arrays, options, tile, axis_name)
