"""Scores of the pairs of a batch with each other: what the softmax and the sigmoid loss over a batch have in common.

Each pair has a right score, q_i . a_i. Its wrong scores are in up to five terms, written as in `losses.geometry`:

| term | scores | source |
|---|---|---|
| `a|q` | the question with the other answers | Dong et al. 2022 |
| `h|q` | the question with the hard negatives of the batch | t5x_retrieval |
| `q|a` | the answer with the other questions | t5x_retrieval |
| `q|q` | the question with the other questions | GTE (Li et al. 2023, arXiv 2308.03281), Qwen3-Embedding |
| `a|a` | the answer with the other answers | the same |

The options in `losses.arguments` apply to all terms, inside the tiles.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from endx_jax.batch import TokenVectors
from endx_jax.checks import check_positive
from endx_jax.losses.arguments import Ceiling, Guide, Prefixes, TokenMasks, check_options
from endx_jax.losses.false_negatives import Marks, negatives, negatives_of_answers
from endx_jax.losses.maxsim import listed_maxsim, maxsim
from endx_jax.losses.shard import AxisName, Shard
from endx_jax.losses.streaming import Reduction, reduce_scores
from endx_jax.numerics import at_least_float32

Array = jax.Array


class Side(NamedTuple):
    """Embeddings of N texts of one side.

    Attributes:
      vectors: [N, E], or [N, L, E] with a mask.
      mask: bool [N, L], tokens that count; None for one embedding of each text.
      scales: [N, P], factors of each prefix's products; None for ones.
      guide: [N, G], without a gradient; None without a guide.
      log_q: [N], subtracted from the logits of these texts as candidates; None for zeros.
    """

    vectors: Array
    mask: Array | None = None
    scales: Array | None = None
    guide: Array | None = None
    log_q: Array | None = None


class Rows(NamedTuple):
    """Operands of R rows.

    Attributes:
      side: embeddings of the rows.
      right: [R, P], right scores.
      scale: [R], factor of the scores in the logits.
      bias: [R], added to the logits; None for zeros.
      ceilings: [R, P], highest scores of negatives; None for no limit.
      guide_ceiling: [R], the guide's.
    """

    side: Side
    right: Array
    scale: Array
    bias: Array | None
    ceilings: Array | None
    guide_ceiling: Array | None


# From two sides to their products [R, C], or [R] row by row, of each prefix.
Products = Callable[[Side, Side], list[Array]]


@dataclasses.dataclass(frozen=True)
class InBatch:
    """One device's pairs, their marks, and their reductions over the candidates of all devices.

    Attributes:
      shard: pairs to include, and collectives.
      widths: widths of the prefixes.
      weights: weight of each prefix.
      right: [R, P], right scores.
      rounding: [R], bound on the rounding errors of scores: see `_rounding`.
      log_q: [R], logarithms of the frequencies of the rows' answers; None for no correction.
      rows: operands of the rows by side, `q` and `a`.
      marks: marks of the rows by side.
      columns: operands and marks of the candidates of all devices by side, `q`, `a` and, with hard negatives, `h`.
      tile: side of a tile of scores; None for whole arrays.
    """

    shard: Shard
    widths: tuple[int, ...]
    weights: tuple[float, ...]
    right: Array
    rounding: Array
    log_q: Array | None
    rows: Mapping[str, Rows]
    marks: Mapping[str, Marks]
    columns: Mapping[str, tuple[Side, Marks]]
    tile: int | None

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, Array | None],
        *,
        temperature: float | Array,
        bias: float | Array | None = None,
        prefixes: Prefixes | None,
        same_side: Sequence[str],
        ceiling: Ceiling | None,
        guide: Guide | None,
        guide_ceiling: Ceiling,
        log_q: Array | None = None,
        token_masks: TokenMasks | None = None,
        tile: int | None,
        axis_name: AxisName,
    ) -> "InBatch":
        """Prepares the arguments of a loss; see `in_batch_softmax` for them.

        `arrays` has `question`, `answer`, `hard_negatives`, `where` and ids by name. `bias` is added to all logits.

        Raises:
          EndxError: arguments do not agree.
        """
        question, answer, hard = (arrays[name] for name in ("question", "answer", "hard_negatives"))
        check_options(arrays, prefixes, same_side, guide, log_q, token_masks, tile, axis_name)
        check_positive("temperature", temperature)
        assert question is not None and answer is not None  # noqa: PT018  # checked above
        shard = Shard.of(question.shape[0], arrays["where"], axis_name)
        prefixes = prefixes or Prefixes((question.shape[-1],), normalize=False)
        question_mask, answer_mask, hard_mask = token_masks or (None, None, None)
        pair = Marks(shard.index(), shard.where, arrays["question_id"], arrays["answer_id"], arrays["positive_ids"])
        side = functools.partial(_side, prefixes)
        sides = {
            "q": side(shard.masked_rows(question), guide and shard.masked_rows(guide.question), question_mask),
            "a": side(shard.masked_rows(answer), guide and shard.masked_rows(guide.answer), answer_mask),
        }
        marks = {"q": pair, "a": pair if "answers" in same_side else pair._replace(positive_ids=None)}
        columns, column_marks = dict(sides), dict(marks)
        if hard is not None:
            by_guide = None if guide is None else guide.hard_negatives
            of_hard = _hard_negatives(hard, by_guide, arrays["hard_negative_ids"], shard.where)
            flat = None if hard_mask is None else hard_mask.reshape(-1, hard.shape[2])
            columns["h"], column_marks["h"] = side(*of_hard[:2], flat), of_hard[2]
        if log_q is not None:
            log_q = jax.lax.stop_gradient(jnp.where(shard.where, at_least_float32(log_q), 0))
            columns["a"] = columns["a"]._replace(log_q=log_q)
        multiply = _rowwise if token_masks is None else _own_maxsim
        right = jnp.stack(_products(prefixes.widths, multiply, sides["q"], sides["a"]), axis=1)
        scale = jnp.broadcast_to(1 / jnp.asarray(temperature, right.dtype), right.shape[:1])
        if bias is not None:
            bias = jnp.broadcast_to(jnp.asarray(bias, right.dtype), scale.shape)
        rounding = _rounding(sides["q"].vectors, sides["a"].vectors)
        guides = sides["q"].guide, sides["a"].guide
        rows = Rows(
            side=sides["q"],
            right=right,
            scale=scale,
            bias=bias,
            ceilings=None if ceiling is None else ceiling(right) + rounding[:, None],
            guide_ceiling=None if guide is None else guide_ceiling(_rowwise(*guides)) + _rounding(*guides),
        )
        gathered = shard.all_gather((columns, column_marks))
        return cls(
            shard=shard,
            widths=prefixes.widths,
            weights=prefixes.weights or (1.0,) * len(prefixes.widths),
            right=right,
            rounding=rounding,
            log_q=log_q,
            rows={name: rows._replace(side=local) for name, local in sides.items()},
            marks=marks,
            columns={name: (local, gathered[1][name]) for name, local in gathered[0].items()},
            tile=tile,
        )

    def reduce(self, term: str, reduction: Reduction, scores: Callable[..., tuple[Array, ...]]) -> tuple[Any, ...]:
        """Reduces each row's scores of a term, for each prefix.

        Args:
          term: a term of the module's table.
          reduction: `streaming.SOFTMAXES` or `streaming.SUMS`.
          scores: module-level function (`Products`, `Rows`, `Side` of the columns) -> scores [R, C] of each prefix.
        """
        candidates, given = term.split("|")
        columns, column_marks = self.columns[candidates]
        multiply: Callable[..., Array] = _matrix
        if columns.mask is not None:  # the score of a question and an answer, whichever are the rows
            multiply = _maxsim_of_columns if term == "q|a" else maxsim
        score = functools.partial(scores, functools.partial(_products, self.widths, multiply))
        rows, marks = self.rows[given], self.marks[given]
        return reduce_scores(reduction, score, KEEP[term], rows, columns, marks, column_marks, tile=self.tile)

    def mean(self, losses: Sequence[Array]) -> tuple[Array, dict[str, Array]]:
        """Returns the loss of a batch and its parts by prefix, given each prefix's losses [R], zero for excluded pairs.

        Means are over the included pairs. The parts are `prefix_loss/WIDTH`, if there is more than one prefix.
        """
        of_prefixes = [self.shard.psum(jnp.sum(x)) / jnp.maximum(self.count, 1) for x in losses]
        weighted = [weight * x for weight, x in zip(self.weights, of_prefixes, strict=True)]
        loss = functools.reduce(jnp.add, weighted)
        if len(self.widths) == 1:
            return loss, {}
        named = zip(self.widths, of_prefixes, strict=True)
        return loss, {f"prefix_loss/{width}": jax.lax.stop_gradient(x) for width, x in named}

    def metrics(self, kept: Array, right: Array) -> dict[str, Array]:
        """Returns `in_batch_accuracy` and `masked_fraction`.

        Args:
          kept: int32 [R], number of negatives of each question among the other answers.
          right: bool [R], true if the question's right score is higher than those of its negatives.
        """
        count, where = self.count, self.shard.where
        masked = jnp.where(where, count - 1 - kept, 0)
        return {
            "in_batch_accuracy": self.shard.psum(jnp.sum(where & right, dtype=count.dtype)) / jnp.maximum(count, 1),
            "masked_fraction": self.shard.psum(jnp.sum(masked)) / jnp.maximum(count * (count - 1), 1),
        }

    @property
    def count(self) -> Array:
        """Number of included pairs of the whole batch."""
        return self.shard.psum(jnp.sum(self.shard.where, dtype=self.right.dtype))


def scores_below(products: Products, rows: Rows, columns: Side, logits: Callable[[Array, int], Array]) -> tuple:
    """Returns the logits [R, C] of each prefix, -inf for scores above a ceiling.

    Args:
      products: products of the sides.
      rows: operands of the rows.
      columns: operands of the columns.
      logits: function (scores [R, C], number of the prefix) -> logits.
    """
    above = None
    if rows.guide_ceiling is not None:
        above = _matrix(rows.side.guide, columns.guide) > rows.guide_ceiling[:, None]
    masked = []
    for n, scores in enumerate(products(rows.side, columns)):
        too_high = above
        if rows.ceilings is not None:
            over = scores > rows.ceilings[:, n, None]
            too_high = over if too_high is None else too_high | over
        values = logits(scores, n)
        # In this order, as `where` of empty arrays returns its second argument, which must vary over the mesh.
        masked.append(values if too_high is None else jnp.where(~too_high, values, -jnp.inf))
    return tuple(masked)


def _matrix(rows: Any, columns: Any) -> Array:
    return jnp.matmul(rows, columns.T, precision=jax.lax.Precision.HIGHEST)


def _rowwise(rows: Any, others: Any) -> Array:
    return jnp.sum(rows * others, axis=-1)


def _maxsim_of_columns(rows: TokenVectors, columns: TokenVectors) -> Array:
    return maxsim(columns, rows).T


def _own_maxsim(questions: TokenVectors, answers: TokenVectors) -> Array:
    return listed_maxsim(questions, jax.tree.map(lambda x: x[:, None], answers))[:, 0]


def _rounding(rows: Any, others: Any) -> Array:
    """Returns a bound on the rounding errors of rows' inner products, [R].

    A sum over a row and a matrix product of any tile round differently, so scores that differ by less than this are
    equal. Products of E terms have errors of about eps sqrt(E) times the norms. Of tokens [R, L, E], the errors of the
    highest products are added.
    """
    rows, others = jax.lax.stop_gradient((rows, others))
    epsilon = jnp.finfo(rows.dtype).eps * rows.shape[-1] ** 0.5
    squares = [_rowwise(rows, rows), _rowwise(others, others)]
    if rows.ndim > 2:
        squares = [jnp.square(jnp.sum(jnp.sqrt(squares[0]), axis=1)), jnp.max(squares[1], axis=1)]
    return epsilon * jnp.sqrt(squares[0] * squares[1])


def _products(widths: tuple[int, ...], multiply: Callable, rows: Side, columns: Side) -> list[Array]:
    """Returns the products of each prefix: `_matrix`, `_rowwise`, or MaxSim, which has one prefix."""
    if rows.mask is not None:
        return [multiply(*(TokenVectors(side.vectors, cast(Array, side.mask)) for side in (rows, columns)))]
    total, products = None, []
    for start, stop in itertools.pairwise((0, *widths)):
        part = multiply(rows.vectors[:, start:stop], columns.vectors[:, start:stop])
        total = part if total is None else total + part
        products.append(total)
    if rows.scales is None or columns.scales is None:
        return products
    factors = zip(rows.scales.T, columns.scales.T, strict=True)
    of_rows = (lambda x: x[:, None], lambda x: x[None, :]) if multiply is _matrix else (lambda x: x,) * 2
    return [x * of_rows[0](row) * of_rows[1](column) for x, (row, column) in zip(products, factors, strict=True)]


def _side(prefixes: Prefixes, vectors: Array, guide: Array | None, mask: Array | None) -> Side:
    scales = None
    if prefixes.normalize:
        squares = [jnp.sum(jnp.square(x), axis=1) for x in jnp.split(vectors, prefixes.widths, axis=1)[:-1]]
        # As in `l2_normalize`: finite at zero vectors.
        scales = jax.lax.rsqrt(jnp.maximum(jnp.cumsum(jnp.stack(squares, axis=1), axis=1), 1e-12))
    return Side(vectors, mask, scales, None if guide is None else jax.lax.stop_gradient(guide))


def _hard_negatives(
    hard: Array, guide: Array | None, ids: Array | None, where: Array
) -> tuple[Array, Array | None, Marks]:
    """Returns the hard negatives of all questions, [B K, ...], their embeddings by the guide, and their marks."""
    present = jnp.broadcast_to(where[:, None], hard.shape[:2])
    if ids is not None:
        present, ids = present & (ids >= 0), ids.reshape(-1)

    def flat(x):
        # Replace padding by zeros before the product: a NaN would reach the gradients even if the sum excludes it.
        there = present.reshape(*present.shape, *[1] * (x.ndim - 2))
        return jnp.where(there, at_least_float32(x), 0).reshape(-1, *x.shape[2:])

    vectors, by_guide = flat(hard), None if guide is None else flat(guide)
    no_pair = jnp.full_like(present.reshape(-1), -1, dtype=jnp.int32)
    return vectors, by_guide, Marks(no_pair, present.reshape(-1), None, ids, None)


def _of_same_side(rows: Marks, columns: Marks) -> Array:
    """Returns bool [R, C], true for two pairs of which neither answer is known to be right for the other's question."""
    return negatives(rows, columns) & negatives_of_answers(rows, columns)


# Masks of the terms.
KEEP: dict[str, Callable[[Marks, Marks], Array]] = {
    "a|q": negatives,
    "h|q": negatives,
    "q|a": negatives_of_answers,
    "q|q": _of_same_side,
    "a|a": _of_same_side,
}
