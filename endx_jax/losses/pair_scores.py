"""Scores of one pair of a batch with the other texts: what the softmax and the sigmoid loss over a batch share.

A pair has a right score, q_i . a_i. Its wrong scores are in up to five terms, written as in `losses.geometry`:

| term | scores | source |
|---|---|---|
| `a|q` | the question with the other answers | Dong et al. 2022 |
| `h|q` | the question with the hard negatives of the batch | t5x_retrieval |
| `q|a` | the answer with the other questions | t5x_retrieval |
| `q|q` | the question with the other questions | GTE (Li et al. 2023, arXiv 2308.03281), Qwen3-Embedding |
| `a|a` | the answer with the other answers | the same |
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from endx_jax.batch import TokenVectors
from endx_jax.losses.arguments import SAME_SIDE, Options, Prefixes, TokenMasks, check_in_batch
from endx_jax.losses.false_negatives import Ids, negatives_of_answer, negatives_of_question, pair_ids
from endx_jax.losses.maxsim import maxsim
from endx_jax.losses.rows import dot, in_tiles, map_rows
from endx_jax.losses.shard import AxisName, all_gather, batch_mean, included_rows, psum

Array = jax.Array


class Arrays(NamedTuple):
    """Arrays of a loss over a batch, by their names as arguments of `in_batch_softmax`."""

    question: Array
    answer: Array
    hard_negatives: Array | None
    question_id: Array | None
    answer_id: Array | None
    positive_ids: Array | None
    hard_negative_ids: Array | None
    where: Array | None


class Texts(NamedTuple):
    """Texts of one side, [N]; one text has no leading axis.

    Attributes:
      vectors: [N, E], or [N, L, E] with a mask.
      ids: ids of the texts.
      mask: bool [N, L], tokens that count; None for one embedding of each text.
      scales: [N, P], factors of each prefix's products; None for ones.
      guide: [N, G], embeddings by the guide, without a gradient; None without a guide.
      log_q: [N], subtracted from the logits of these texts as candidates; None for zeros.
    """

    vectors: Array
    ids: Ids
    mask: Array | None
    scales: Array | None
    guide: Array | None
    log_q: Array | None


class Pair(NamedTuple):
    """A question and its own answer."""

    question: Texts
    answer: Texts


@dataclasses.dataclass(frozen=True)
class InBatch:
    """This device's pairs, and the candidates of all devices.

    Attributes:
      pairs: [R] pairs.
      candidates: texts by side, `q`, `a` and, with hard negatives, `h`.
      options: options of the loss.
      prefixes: prefixes of the embeddings; one for whole embeddings.
      tile: rows of scores at a time; see `map_rows`.
      axis_name: mesh axes over which the batch is split.
    """

    pairs: Pair
    candidates: Mapping[str, Texts]
    options: Options
    prefixes: Prefixes
    tile: int | None
    axis_name: AxisName

    @classmethod
    def of(
        cls,
        arrays: Arrays,
        options: Options | None,
        masks: TokenMasks | None,
        tile: int | None,
        axis_name: AxisName,
    ) -> "InBatch":
        """Prepares the arguments of `in_batch_softmax`.

        Raises:
          EndxError: arguments do not agree.
        """
        options = options or Options()
        check_in_batch(arrays._asdict(), options, masks)
        question, answer, hard_negatives, question_id, answer_id, positive_ids, hard_ids, where = arrays
        known = {"question_id": question_id, "answer_id": answer_id, "positive_ids": positive_ids}
        ids = pair_ids(len(question), axis_name, where=where, **known)
        prefixes = options.prefixes or Prefixes((question.shape[-1],), normalize=False)
        log_q = None if options.log_q is None else jax.lax.stop_gradient(included_rows(options.log_q, ids.where))
        mask, guide = ({} if given is None else given._asdict() for given in (masks, options.guide))
        questions = _texts(question, ids, mask.get("question"), guide.get("question"), prefixes)
        answers = _texts(answer, ids, mask.get("answer"), guide.get("answer"), prefixes)._replace(log_q=log_q)
        candidates = {"q": questions, "a": answers}
        if hard_negatives is not None:
            hard = hard_negatives, mask.get("hard_negatives"), guide.get("hard_negatives")
            candidates["h"] = _hard_negatives(*hard, hard_ids, ids, prefixes)
        pairs = Pair(questions, answers)
        return cls(pairs, all_gather(candidates, axis_name), options, prefixes, tile, axis_name)

    def right_scores(self, pair: Pair) -> list[Array]:
        """Returns the right score of a pair, for each prefix."""
        return _scores(self.prefixes.widths, pair.question, pair.answer)

    def wrong_scores(self, term: str, pair: Pair, candidates: Mapping[str, Texts]) -> list[tuple[Array, Array]]:
        """Returns the scores [C] of a pair in a term, and true for those of negatives, for each prefix."""
        row, columns = getattr(pair, SIDES[term[2]]), candidates[term[0]]
        negative = NEGATIVES[term](row.ids, columns.ids)
        if self.options.guide is not None:
            question, answer, own, others = (cast(Array, x.guide) for x in (*pair, row, columns))
            limit = self.options.guide_ceiling(dot(question, answer)) + rounding_of(question, answer)
            negative &= ~(dot(own, others) > limit)
        widths = self.prefixes.widths
        if row.mask is None:
            scores = _scores(widths, row, columns)
        else:  # the score of a question and an answer, whichever is the row
            one = lambda column: _scores(widths, *((column, row) if term == "q|a" else (row, column)))  # noqa: E731
            scores = in_tiles(one, columns, self.tile)
        if self.options.ceiling is None:
            return [(x, negative) for x in scores]
        rounding = rounding_of(pair.question.vectors, pair.answer.vectors)
        limits = [self.options.ceiling(right) + rounding for right in self.right_scores(pair)]
        return [(x, negative & ~(x > limit)) for x, limit in zip(scores, limits, strict=True)]

    def reduce(self, of_pair: Callable, shared: Array) -> tuple[Array, dict[str, Array]]:
        """Maps a loss over the pairs, and returns its mean over the included pairs and its metrics.

        Args:
          of_pair: function (pair, (candidates, shared)) -> its loss for each prefix [P], the number of negatives among
            the other answers, and true if the right score is higher than theirs.
          shared: array with a gradient, such as a temperature.
        """
        losses, negatives, correct = map_rows(of_pair, self.pairs, (self.candidates, shared), self.tile)
        where, widths = self.pairs.question.ids.where, self.prefixes.widths
        metrics = batch_metrics(where, negatives, correct, self.axis_name)
        of_prefixes = [batch_mean(losses[:, prefix], where, self.axis_name) for prefix in range(len(widths))]
        weights = self.prefixes.weights or (1.0,) * len(widths)
        loss = functools.reduce(jnp.add, [weight * x for weight, x in zip(weights, of_prefixes, strict=True)])
        if len(widths) > 1:
            named = zip(widths, of_prefixes, strict=True)
            metrics |= {f"prefix_loss/{width}": jax.lax.stop_gradient(x) for width, x in named}
        return loss, metrics


def batch_metrics(where: Array, negatives: Array, correct: Array, axis_name: AxisName) -> dict[str, Array]:
    """Returns the metrics of the included pairs that losses over a batch share.

    Args:
      where: bool [R], pairs to include.
      negatives: int32 [R], number of negatives among the other pairs of the batch.
      correct: bool [R], true if the pair's right score is the highest.
      axis_name: mesh axes over which the batch is split.

    Returns:
      `in_batch_accuracy`, the fraction of correct pairs, and `masked_fraction`, the fraction of the other pairs that
      are not negatives.
    """
    count = psum(jnp.sum(where, dtype=jax.dtypes.canonicalize_dtype(float)), axis_name)
    masked = psum(jnp.sum(jnp.where(where, count - 1 - negatives, 0)), axis_name)
    return {
        "in_batch_accuracy": batch_mean(correct.astype(count.dtype), where, axis_name),
        "masked_fraction": masked / jnp.maximum(count * (count - 1), 1),
    }


def _texts(vectors: Array, ids: Ids, mask: Array | None, guide: Array | None, prefixes: Prefixes) -> Texts:
    """Returns the texts of one side, with zeros for those that are not included."""
    # Zeros before the products: a NaN would reach the gradients even if sums exclude it.
    vectors, scales = included_rows(vectors, ids.where), None
    if prefixes.normalize:
        squares = [jnp.sum(jnp.square(x), axis=1) for x in jnp.split(vectors, prefixes.widths, axis=1)[:-1]]
        # As in `l2_normalize`: finite at zero vectors.
        scales = jax.lax.rsqrt(jnp.maximum(jnp.cumsum(jnp.stack(squares, axis=1), axis=1), 1e-12))
    guide = None if guide is None else jax.lax.stop_gradient(included_rows(guide, ids.where))
    return Texts(vectors, ids, mask, scales, guide, None)


def _hard_negatives(hard, mask, guide, hard_ids: Array | None, pairs: Ids, prefixes: Prefixes) -> Texts:
    """Returns the hard negatives [B, K, ...] of all questions as texts [B K]."""
    present = jnp.broadcast_to(pairs.where[:, None], hard.shape[:2])
    present = (present if hard_ids is None else present & (hard_ids >= 0)).reshape(-1)
    hard_ids, hard, mask, guide = (
        None if x is None else x.reshape(-1, *x.shape[2:]) for x in (hard_ids, hard, mask, guide)
    )
    ids = Ids(jnp.full_like(present, -1, dtype=jnp.int32), present, answer_id=hard_ids)
    return _texts(hard, ids, mask, guide, prefixes)


def _scores(widths: tuple[int, ...], row: Texts, columns: Texts) -> list[Array]:
    """Returns the scores of each prefix: MaxSim of a question and an answer, or products with a text or with [C]."""
    if row.mask is not None:
        return [maxsim(*(TokenVectors(x.vectors[None], cast(Array, x.mask)[None]) for x in (row, columns)))[0, 0]]
    parts = [dot(row.vectors[i:j], columns.vectors[..., i:j]) for i, j in itertools.pairwise((0, *widths))]
    scores = [*itertools.accumulate(parts)]
    if row.scales is None or columns.scales is None:
        return scores
    return [x * row.scales[n] * columns.scales[..., n] for n, x in enumerate(scores)]


def rounding_of(vectors: Array, others: Array) -> Array:
    """Returns a bound on the rounding errors of the inner product of two vectors [E], or of the MaxSim of [L, E].

    Products of different shapes round differently, so scores that differ by less than this are equal. Products of E
    terms have errors of about eps sqrt(E) times the norms. Of tokens, the errors of the highest products are added.
    """
    vectors, others = jax.lax.stop_gradient((vectors, others))
    epsilon = jnp.finfo(vectors.dtype).eps * vectors.shape[-1] ** 0.5
    norms, other_norms = (jnp.sqrt(jnp.sum(jnp.square(x), axis=-1)) for x in (vectors, others))
    return epsilon * jnp.sum(norms) * jnp.max(other_norms)


def _of_same_side(row: Ids, columns: Ids) -> Array:
    """Returns bool [C], true for pairs of which neither answer is known to be right for the other's question."""
    return negatives_of_question(row, columns) & negatives_of_answer(row, columns)


SIDES = {"q": "question", "a": "answer"}
# Terms of each direction's sum, besides those of one side.
TO_ANSWERS, TO_QUESTIONS = ("a|q", "h|q"), ("q|a",)
# Masks of the terms: functions (ids of a row, ids of the columns) -> bool [C].
NEGATIVES: Mapping[str, Callable[[Ids, Ids], Array]] = {
    **dict.fromkeys(TO_ANSWERS, negatives_of_question),
    **dict.fromkeys(TO_QUESTIONS, negatives_of_answer),
    **dict.fromkeys(SAME_SIDE.values(), _of_same_side),
}
