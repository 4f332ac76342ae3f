r"""Flash attention for TPUs over texts that are concatenated (Dao 2023; Pallas).

Tokens [T] are divided into blocks. The texts are contiguous, so the keys of a block of queries are a range of blocks,
which is computed from the bounds of the texts at run time. The grid runs over the pairs of blocks that share a text,
and no others; for causal attention, only those whose keys are not after the queries. The scores of a pair are kept in
fast memory as [keys, queries], so that the maxima, sums and bounds of the queries are rows. Several heads share a grid
step, adjacent in the last axis.

The backward kernel computes the scores of a pair once. It visits the pairs by blocks of keys, so the gradient of a
block of queries is complete after its last block of keys; until then it is in a ring of blocks in fast memory.

JAX's own kernels for TPUs need the heads before the tokens, and visit all blocks within the longest text of a block:
docs/layout.md compares them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from endx_jax.models.layout import BLOCK

Array = jax.Array

# Tokens of a block: LARGE_BLOCK for texts that are longer than BLOCK, if it divides T, else BLOCK, which must. The
# heads of a grid step together are a multiple of LANES wide, and at most MOST_LANES or as many as leave the ring of the
# backward kernel in RING bytes. Chosen from the hardware's tiles and the compiler's schedules, not measured.
LARGE_BLOCK, LANES, MOST_LANES, RING = 256, 128, 512, 4 * 2**20
# Score of masked pairs, and initial value of the running maximum, whose exponential of the difference is 0.
LOWEST, NO_MAXIMUM = -1e30, -5e29

# Exponentials are those of 2, which the hardware has.
LOG2_E = math.log2(math.e)

# Contracted axes of the matrix products a b^T, a^T b and a b.
TRANSPOSED, LEFT_TRANSPOSED = (((1,), (1,)), ((), ())), (((0,), (0,)), ((), ()))
PLAIN = (((1,), (0,)), ((), ()))


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static description of attention over concatenated texts.

    Attributes:
      tokens: number of tokens T, a multiple of `block`.
      heads: number of heads H.
      head_width: width Dh of a head.
      width: maximum length of a text in tokens, or the window plus one; the results for longer texts are undefined.
      block: tokens of a block: see `block_size`.
      scale: factor of the scores.
      causal: a token attends to no later token.
      texts: number of texts, for the compiler's estimate of the cost.
      interpret: emulates the kernels on any platform, slowly.
    """

    tokens: int
    heads: int
    head_width: int
    width: int
    block: int
    scale: float
    causal: bool = False
    texts: int = 1
    interpret: bool = False

    @property
    def reach(self) -> int:
        """Maximum number of blocks between a query and a key of the same text."""
        return min(math.ceil((self.width - 1) / self.block), self.tokens // self.block - 1)

    @property
    def most_pairs(self) -> int:
        """Maximum number of blocks that a block is paired with."""
        return (1 if self.causal else 2) * self.reach + 1

    @property
    def group(self) -> int:
        """Number of heads of a grid step: a divisor of H that fills whole lanes, as many as fit, or H."""
        most = max(LANES, min(MOST_LANES, RING // (4 * self.most_pairs * self.block)))
        widths = {n: n * self.head_width for n in range(self.heads, 0, -1) if self.heads % n == 0}
        return next((n for n, width in widths.items() if width <= most and width % LANES == 0), self.heads)

    @property
    def groups(self) -> int:
        """Number of grid steps for all heads of a pair of blocks."""
        return self.heads // self.group

    @property
    def lanes(self) -> int:
        """Total width of the heads of a grid step."""
        return self.group * self.head_width

    @property
    def pairs(self) -> int:
        """Estimated number of pairs of blocks: of texts of equal length, or of a window's width."""
        ends = np.ceil(np.arange(1, self.texts + 1) * self.tokens / self.texts).astype(int)
        starts = np.arange(0, self.tokens, self.block)
        first = np.append(0, ends)[np.searchsorted(ends, starts, side="right")]
        last = ends[np.searchsorted(ends, starts + self.block)] - 1
        first = np.maximum(first, starts - self.width + 1)
        last = np.minimum(last, starts + self.block + (-1 if self.causal else self.width - 2))
        return int(np.sum(np.maximum(last // self.block - first // self.block, 0) + 1))

    def columns(self, head: int) -> slice:
        """Returns the slice of the last axis that belongs to a head of the group."""
        return slice(head * self.head_width, (head + 1) * self.head_width)


def block_size(tokens: int, width: int) -> int:
    """Returns the tokens of a block for T tokens, a multiple of `BLOCK`, and texts of at most `width`."""
    return LARGE_BLOCK if width > BLOCK and tokens % LARGE_BLOCK == 0 else BLOCK


def attend_packed(query: Array, key: Array, value: Array, bounds: Array, plan: Plan) -> Array:
    """Computes attention of each token over the tokens of its own text, or those at most a window away.

    Args:
      query: [T, H, Dh], the tokens of all texts, concatenated.
      key: [T, H, Dh].
      value: [T, H, Dh].
      bounds: int32 [2, T], the first token that each token attends to, and one past the last: those of its text or of a
        symmetric window inside it; 0 and 0 for padding.
      plan: static description.

    Returns:
      [T, H, Dh] in the dtype of `value`, zero for padding; query, key and value have gradients.
    """
    flat = (x.reshape(plan.tokens, plan.heads * plan.head_width) for x in (query, key, value))
    return _attend(plan, *flat, bounds).reshape(query.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, query: Array, key: Array, value: Array, bounds: Array) -> Array:
    return _forward(plan, query, key, value, bounds)[0]


def _forward(plan, query, key, value, bounds):
    inputs = [(_matrix, _own, query), (_matrix, _other, key), (_matrix, _other, value)]
    inputs += [(_bounds, _own, _key_bounds(plan, bounds))]
    outputs = [(_matrix, _own, value.dtype), (_row, _own, jnp.float32)]
    scratch = [(plan.lanes, plan.block), (plan.group, plan.block), (plan.group, plan.block)]
    out, log_total = _run(plan, bounds, inputs, outputs, scratch, by_keys=False)
    return out, (query, key, value, bounds, out, log_total)


def _backward(plan, residuals, gradient):
    query, key, value, bounds, out, log_total = residuals
    products = (out.astype(jnp.float32) * gradient.astype(jnp.float32)).reshape(len(out), plan.heads, -1).sum(-1)
    inner = products.T.reshape(log_total.shape)
    inputs = [(_matrix, _other, query), (_matrix, _own, key), (_matrix, _own, value), (_matrix, _other, gradient)]
    inputs += [(_row, _other, log_total), (_row, _other, inner), (_bounds, _other, _key_bounds(plan, bounds))]
    outputs = [(_matrix, _finished, query.dtype), (_matrix, _own, key.dtype), (_matrix, _own, value.dtype)]
    scratch = [(plan.most_pairs, plan.lanes, plan.block), (plan.block, plan.lanes), (plan.block, plan.lanes)]
    return *_run(plan, bounds, inputs, outputs, scratch, by_keys=True), None


_attend.defvjp(_forward, _backward)


def _key_bounds(plan: Plan, bounds: Array) -> Array:
    """Returns the bounds of what each token attends to; blocks are paired by those of its text or symmetric window."""
    return bounds.at[1].min(jnp.arange(1, bounds.shape[1] + 1, dtype=bounds.dtype)) if plan.causal else bounds


def _block_pairs(plan: Plan, bounds: Array, *, by_keys: bool) -> tuple[Array, tuple[Array, ...]]:
    """Returns the number of pairs of blocks to compute, and the arrays that describe them, in order of `own`.

    The relation of sharing a text is symmetric. Causal attention keeps the pairs whose keys are not after the queries.
    The arrays are int32: `own` [P], the first block of each pair, P being the largest number of pairs; and for each
    block [N]: `shift`, so that the second block of pair p is p + shift[own]; the first and the last block that it is
    paired with as `own`, and the same as `other`; `finished[n]`, how many blocks are complete as `other` once `own` has
    visited block n. A block of padding is paired with itself. With `by_keys`, `own` are the blocks of keys, else those
    of queries.
    """
    count = bounds.shape[1] // plan.block
    begin, end = (x.reshape(count, plan.block) for x in bounds)
    padding, itself = jnp.max(end, axis=1) == 0, jnp.arange(count)
    first = jnp.min(jnp.where(end == 0, bounds.shape[1], begin), axis=1) // plan.block
    first = jnp.where(padding, itself, jnp.maximum(first, itself - plan.reach))
    last = jnp.where(padding, itself, jnp.minimum((jnp.max(end, axis=1) - 1) // plan.block, itself + plan.reach))
    # The blocks of keys by block of queries, and the blocks of queries by block of keys.
    of_queries, of_keys = ((first, itself), (itself, last)) if plan.causal else ((first, last), (first, last))
    (first, last), others = (of_keys, of_queries) if by_keys else (of_queries, of_keys)
    ends = jnp.cumsum(last - first + 1)
    own = jnp.searchsorted(ends, jnp.arange(count * plan.most_pairs), side="right")
    shift = first - (ends - (last - first + 1))
    finished = jnp.searchsorted(others[1], itself, side="right")
    arrays = (jnp.minimum(own, count - 1), shift, first, last, *others, finished)
    return ends[-1], tuple(x.astype(jnp.int32) for x in arrays)


# The block of an array for a pair, from the arrays of `_block_pairs`: `own`, by which the pairs are ordered; `other`,
# which is paired with it; or, for a result, the next `other` block whose last pair is to come.


def _own(pair, own, *_):
    return own[pair]


def _other(pair, own, shift, *_):
    return pair + shift[own[pair]]


def _finished(pair, own, shift, *rest):
    return jnp.minimum(_other(pair, own, shift), rest[-1][own[pair]])


def _matrix(plan: Plan, block: Callable) -> pl.BlockSpec:
    """Blocks of an array [T, H Dh], for a group of heads."""
    return pl.BlockSpec((plan.block, plan.lanes), lambda group, *at: (block(*at), group))


def _row(plan: Plan, block: Callable) -> pl.BlockSpec:
    """Blocks of an array [groups, heads of a group, T], for a group of heads."""
    return pl.BlockSpec((None, plan.group, plan.block), lambda group, *at: (group, 0, block(*at)))


def _bounds(plan: Plan, block: Callable) -> pl.BlockSpec:
    """Blocks of an array [2, T]."""
    return pl.BlockSpec((2, plan.block), lambda group, *at: (0, block(*at)))


class _Step(NamedTuple):
    """Scalars of a grid step: its pair of blocks, and whether the pair is the first or the last of either block."""

    own: Array
    other: Array
    begins: Array
    ends: Array
    other_begins: Array
    other_ends: Array


def _run(
    plan: Plan, bounds: Array, inputs: Sequence[tuple], outputs: Sequence[tuple], scratch: Sequence, *, by_keys: bool
) -> list[Any]:
    """Runs the backward kernel (`by_keys`) or the forward kernel on each pair of blocks."""
    # Inputs and outputs are the functions of their blocks' shape and place, and the array or its dtype; scratch memory
    # is float32, of these shapes.
    count, described = _block_pairs(plan, bounds, by_keys=by_keys)
    kernel, products = (_backward_kernel, 5) if by_keys else (_forward_kernel, 2)
    scores = plan.heads * plan.pairs * plan.block**2
    reads = plan.pairs * plan.block / plan.tokens  # of a block that is `other`
    cost = pl.CostEstimate(
        flops=products * scores * 2 * plan.head_width,
        transcendentals=scores,
        bytes_accessed=int(sum(x.nbytes * (1 if block is _own else reads) for _, block, x in inputs)),
    )

    def body(own, shift, first, last, other_first, other_last, finished, *refs):
        del finished
        pair = pl.program_id(1)
        at, other = own[pair], _other(pair, own, shift)
        ends = other == first[at], other == last[at], at == other_first[other], at == other_last[other]
        read, written = refs[: len(inputs)], refs[len(inputs) :]
        kernel(plan, _Step(at, other, *ends), read, written[: len(outputs)], written[len(outputs) :])

    shapes = {_matrix: (plan.tokens, plan.heads * plan.head_width), _row: (plan.groups, plan.group, plan.tokens)}
    held = sum(4 * math.prod(shape) for shape in scratch)
    return pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(shapes[kind], dtype) for kind, _, dtype in outputs],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(described),
            grid=(plan.groups, count),
            in_specs=[kind(plan, block) for kind, block, _ in inputs],
            out_specs=[kind(plan, block) for kind, block, _ in outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=3 * RING + held if held > RING else None,
        ),
        cost_estimate=cost,
        interpret=plan.interpret,
    )(*described, *(x for *_, x in inputs))


def _forward_kernel(plan: Plan, step: _Step, inputs: Sequence, outputs: Sequence, scratch: Sequence) -> None:
    """Adds a block of keys to the running maxima, sums and weighted values of a block of queries."""
    (query, key, value, bounds), (out, log_total), (attended, highest, total) = inputs, outputs, scratch

    @pl.when(step.begins)
    def start():
        attended[...] = jnp.zeros(attended.shape, attended.dtype)
        highest[...] = jnp.full(highest.shape, NO_MAXIMUM, highest.dtype)
        total[...] = jnp.zeros(total.shape, total.dtype)

    mask = _mask(plan, step.other, bounds)
    for head in range(plan.group):
        at, columns = slice(head, head + 1), plan.columns(head)
        scores = _scores(plan, head, query, key, mask)
        top = jnp.maximum(highest[at], jnp.max(scores, axis=0, keepdims=True))
        weights = jnp.exp2(scores - top)
        shrink = jnp.exp2(highest[at] - top)
        highest[at] = top
        total[at] = shrink * total[at] + jnp.sum(weights, axis=0, keepdims=True)
        part = _product(value[:, columns], weights.astype(value.dtype), LEFT_TRANSPOSED)
        attended[columns] = shrink * attended[columns] + part

    @pl.when(step.ends)
    def finish():
        for head in range(plan.group):
            at, columns = slice(head, head + 1), plan.columns(head)
            whole = jnp.where(total[at] == 0, 1.0, total[at])  # padding has no keys
            attended[columns] = attended[columns] / whole
            log_total[at] = highest[at] + jnp.log2(whole)
        out[...] = attended[...].T.astype(out.dtype)


def _backward_kernel(plan: Plan, step: _Step, inputs: Sequence, outputs: Sequence, scratch: Sequence) -> None:
    """Adds the contribution of a pair to the gradients of its block of keys and values, and of queries."""
    query, key, value, gradient, log_total, inner, bounds = inputs
    (to_query, to_key, to_value), (ring, keys, values) = outputs, scratch
    queries = ring.at[jax.lax.rem(step.other, ring.shape[0])]

    @pl.when(step.begins)
    def start():
        keys[...] = jnp.zeros(keys.shape, keys.dtype)
        values[...] = jnp.zeros(values.shape, values.dtype)

    @pl.when(step.other_begins)
    def start_queries():
        queries[...] = jnp.zeros(queries.shape, queries.dtype)

    mask = _mask(plan, step.own, bounds)
    for head in range(plan.group):
        at, columns = slice(head, head + 1), plan.columns(head)
        weights = jnp.exp2(_scores(plan, head, query, key, mask) - log_total[at])
        to_weights = _product(value[:, columns], gradient[:, columns], TRANSPOSED)
        to_scores = (weights * (to_weights - inner[at])).astype(key.dtype)
        values[:, columns] += _product(weights.astype(value.dtype), gradient[:, columns], PLAIN)
        keys[:, columns] += _product(to_scores, query[:, columns], PLAIN)
        queries[columns] += _product(key[:, columns], to_scores, LEFT_TRANSPOSED)

    @pl.when(step.ends)
    def finish():
        to_key[...] = (plan.scale * keys[...]).astype(to_key.dtype)
        to_value[...] = values[...].astype(to_value.dtype)

    @pl.when(step.other_ends)
    def finish_queries():
        to_query[...] = (plan.scale * queries[...].T).astype(to_query.dtype)


def _mask(plan: Plan, keys: Array, bounds) -> Array:
    """Returns the mask of a pair of blocks, bool [keys, queries], true where the query attends to the key."""
    place = keys * plan.block + jax.lax.broadcasted_iota(jnp.int32, (plan.block, plan.block), 0)
    return (bounds[0:1] <= place) & (place < bounds[1:2])


def _scores(plan: Plan, head: int, query, key, mask: Array) -> Array:
    """Returns the masked scores of a head, [keys, queries], times log2(e)."""
    columns = plan.columns(head)
    scores = _product(key[:, columns], query[:, columns], TRANSPOSED) * (plan.scale * LOG2_E)
    return jnp.where(mask, scores, LOWEST)


def _product(a: Array, b: Array, axes) -> Array:
    """Returns the product of two matrices in float32; float32 matrices are not rounded to bfloat16."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    return jax.lax.dot_general(a, b, axes, precision=precision, preferred_element_type=jnp.float32)
