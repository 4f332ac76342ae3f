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

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from endx_jax.batch import TokenVectors
from endx_jax.losses.arguments import SAME_SIDE, Arrays, Options, Prefixes, check_in_batch
from endx_jax.losses.false_negatives import Ids, negatives_of_answer, negatives_of_question, pair_ids
from endx_jax.losses.maxsim import maxsim
from endx_jax.losses.rows import dot, map_rows, mean_over_rows
from endx_jax.losses.shard import AxisName, all_gather, included_rows
from endx_jax.numerics import at_least_float32

Array = jax.Array


class Texts(NamedTuple):
    """Texts of one side, [N]; one text has no leading axis.

    Attributes:
      vectors: embeddings, an array [N, E] or `TokenVectors`.
      ids: ids of the texts.
      scales: [N, P], factors of each prefix's products; None for ones.
      guide: [N, G], embeddings by the guide, without a gradient; None without a guide.
      log_q: [N], subtracted from the logits of these texts as candidates; None for zeros.
    """

    vectors: Any
    ids: Ids
    scales: Array | None
    guide: Any
    log_q: Array | None


class Scores(NamedTuple):
    """Scores of a pair, for one prefix.

    Attributes:
      right: right score.
      wrong: by term, scores [C] and bool [C], true for those of negatives.
      log_q: by term, log_q [C] of its candidates; 0 if they have none.
      own_log_q: that of the pair's answer.
    """

    right: Array
    wrong: Mapping[str, tuple[Array, Array]]
    log_q: Mapping[str, Array | float]
    own_log_q: Array | float

    def margins(self, term: str, temperature: Array) -> Array:
        """Returns the logits [C] of a term minus the right logit, without the pair's own log_q."""
        # Subtract before the division by the temperature, so that large scores do not cancel.
        return (self.wrong[term][0] - self.right) / temperature - self.log_q[term]


def terms_by_direction(arrays: Arrays, options: Options) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the terms of the sums from question to answer, and from answer to question."""
    same_side = tuple(SAME_SIDE[side] for side in options.same_side)
    hard = () if arrays.hard_negatives is None else ("h|q",)
    return ("a|q", *hard, *same_side), ("q|a", *same_side)


def mean_over_pairs(
    loss_of: Callable[..., Array],
    scalars: tuple[Array | float, ...],
    terms: Iterable[str],
    arrays: Arrays,
    options: Options,
    tile: int | None,
    axis_name: AxisName,
) -> tuple[Array, dict[str, Array]]:
    """Computes the mean of `loss_of(scores, *scalars)` over the included pairs, and the metrics of `in_batch_softmax`.

    `loss_of` gets the scores of one pair for one prefix, in the given terms. The first scalar is the temperature.
    """
    check_in_batch(arrays, options)
    vectors = jax.tree.leaves(arrays.question)[0]
    known = {name: getattr(arrays, name) for name in ("question_id", "answer_id", "positive_ids", "where")}
    ids = pair_ids(len(vectors), axis_name, **known)
    prefixes = options.prefixes or Prefixes((vectors.shape[-1],), normalize=False)
    weights = prefixes.weights or (1.0,) * len(prefixes.widths)
    guide: dict = options.guide._asdict() if options.guide else {}
    pairs = {
        "q": _texts(prefixes, ids, arrays.question, guide.get("question")),
        "a": _texts(prefixes, ids, arrays.answer, guide.get("answer"), options.log_q),
    }
    sides = dict(pairs)
    if arrays.hard_negatives is not None:
        hard = arrays.hard_negatives, arrays.hard_negative_ids, guide.get("hard_negatives")
        sides["h"] = _hard_negatives(prefixes, ids.where, *hard)

    def of_pair(pair, shared):
        candidates, (temperature, *others) = shared
        scores, rounding = _scores(sorted({"a|q", *terms}), pair, candidates, prefixes, options, tile)
        losses = [loss_of(x, temperature, *others) for x in scores]
        negative = scores[-1].wrong["a|q"][1]
        highest = jnp.max(scores[-1].margins("a|q", temperature), where=negative, initial=-jnp.inf)
        correct = highest + scores[-1].own_log_q < -rounding / temperature
        metrics = pair_metrics(correct, negative, candidates["a"].ids)
        if len(losses) > 1:
            metrics |= {f"prefix_loss/{width}": x for width, x in zip(prefixes.widths, losses, strict=True)}
        return sum(weight * x for weight, x in zip(weights, losses, strict=True)), metrics

    scalars = tuple(jnp.asarray(x, at_least_float32(vectors).dtype) for x in scalars)
    shared = all_gather(sides, axis_name), scalars
    return mean_over_rows(of_pair, pairs, shared, ids.where, tile, axis_name)


def pair_metrics(correct: Array, negative: Array, candidates: Ids) -> dict[str, Array]:
    """Returns the metrics of a pair: if its right score is the highest, and the share of other pairs left out.

    `negative` is true for those of the `candidates`, all pairs [B], that are not left out.
    """
    others = jnp.sum(candidates.where) - 1
    return {"in_batch_accuracy": correct, "masked_fraction": (others - jnp.sum(negative)) / jnp.maximum(others, 1)}


def _scores(
    terms: Iterable[str],
    pair: Mapping[str, Texts],
    candidates: Mapping[str, Texts],
    prefixes: Prefixes,
    options: Options,
    tile: int | None,
) -> tuple[list[Scores], Array]:
    """Returns the scores of a pair for each prefix, and a bound on their rounding errors."""
    question, answer = pair["q"], pair["a"]
    tokens = isinstance(question.vectors, TokenVectors)
    rounding = _rounding(question.vectors, answer.vectors)
    rights = [_maxsim(question.vectors, answer.vectors)] if tokens else _products(prefixes.widths, question, answer)
    wrong: list[dict] = [{} for _ in rights]
    for term in terms:
        row, columns = pair[term[2]], candidates[term[0]]
        negative = _negatives(term, row.ids, columns.ids)
        if options.guide is not None:
            limit = options.guide_ceiling(dot(question.guide, answer.guide)) + _rounding(question.guide, answer.guide)
            negative &= ~(dot(row.guide, columns.guide) > limit)
        if tokens:
            swap = term == "q|a"  # MaxSim is the score of a question and an answer, whichever is the row
            one = lambda x, y=row.vectors, swap=swap: _maxsim(x, y) if swap else _maxsim(y, x)  # noqa: E731
            products = [map_rows(one, columns.vectors, tile)]
        else:
            products = _products(prefixes.widths, row, columns)
        for of_prefix, scores, right in zip(wrong, products, rights, strict=True):
            keep = negative if options.ceiling is None else negative & ~(scores > options.ceiling(right) + rounding)
            of_prefix[term] = scores, keep
    log_q = {term: 0.0 if (x := candidates[term[0]].log_q) is None else x for term in terms}
    own = 0.0 if answer.log_q is None else answer.log_q
    return [Scores(*found, log_q, own) for found in zip(rights, wrong, strict=True)], rounding


def _maxsim(question: TokenVectors, answer: TokenVectors) -> Array:
    """Returns the MaxSim of one question and one answer."""
    return maxsim(*jax.tree.map(lambda x: x[None], (question, answer)))[0, 0]


def _products(widths: tuple[int, ...], row: Texts, columns: Texts) -> list[Array]:
    """Returns the products of each prefix of a text with another text, or with columns [C]."""
    parts = [dot(row.vectors[i:j], columns.vectors[..., i:j]) for i, j in itertools.pairwise((0, *widths))]
    products = [*itertools.accumulate(parts)]
    if row.scales is None or columns.scales is None:
        return products
    return [x * row.scales[n] * columns.scales[..., n] for n, x in enumerate(products)]


def _rounding(one: Any, other: Any) -> Array:
    """Returns a bound on the rounding errors of the inner product of two vectors [E], or of the MaxSim of [L, E]."""
    # Products of different shapes round differently, so scores that differ by less than this are equal. Products of E
    # terms have errors of about eps sqrt(E) times the norms. Of tokens, the errors of the highest products are added.
    one, other = (jax.lax.stop_gradient(jax.tree.leaves(x)[0]) for x in (one, other))
    epsilon = jnp.finfo(one.dtype).eps * one.shape[-1] ** 0.5
    norms, other_norms = (jnp.sqrt(jnp.sum(jnp.square(x), axis=-1)) for x in (one, other))
    return epsilon * jnp.sum(norms) * jnp.max(other_norms)


def _texts(prefixes: Prefixes, ids: Ids, vectors, guide: Array | None = None, log_q: Array | None = None) -> Texts:
    """Returns the texts of one side, with zeros for those that are not included."""
    # Zeros before the products: a NaN would reach the gradients even if sums exclude it.
    clear = functools.partial(included_rows, where=ids.where)
    constant = [None if x is None else jax.lax.stop_gradient(clear(x)) for x in (guide, log_q)]
    if isinstance(vectors, TokenVectors):
        return Texts(TokenVectors(clear(vectors.values), vectors.mask), ids, None, *constant)
    vectors, scales = clear(vectors), None
    if prefixes.normalize:
        squares = [jnp.sum(jnp.square(x), axis=1) for x in jnp.split(vectors, prefixes.widths, axis=1)[:-1]]
        # As in `l2_normalize`: finite at zero vectors.
        scales = jax.lax.rsqrt(jnp.maximum(jnp.cumsum(jnp.stack(squares, axis=1), axis=1), 1e-12))
    return Texts(vectors, ids, scales, *constant)


def _hard_negatives(prefixes: Prefixes, where: Array, vectors, ids: Array | None, guide: Array | None) -> Texts:
    """Returns the hard negatives [B, K, ...] of all pairs as texts [B K]."""
    present = jnp.broadcast_to(where[:, None], jax.tree.leaves(vectors)[0].shape[:2])
    present = present if ids is None else present & (ids >= 0)
    present, vectors, ids, guide = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (present, vectors, ids, guide))
    return _texts(prefixes, Ids(jnp.full(present.shape, -1), present, answer_id=ids), vectors, guide)


def _negatives(term: str, row: Ids, columns: Ids) -> Array:
    """Returns bool [C], true for the candidates of a term that are negatives of a row."""
    if term == "q|a":
        return negatives_of_answer(row, columns)
    negative = negatives_of_question(row, columns)
    # Of two texts of one side, neither answer may be known to be right for the other's question.
    return negative & negatives_of_answer(row, columns) if term in SAME_SIDE.values() else negative
