r"""Flash attention for TPUs over texts that are concatenated (Dao 2023; Pallas).

Tokens [T] are divided into blocks. The texts are contiguous, so the keys of a block of queries are a range of blocks,
which is computed from the bounds of the texts at run time. The grid runs over the pairs of blocks that share a text,
and no others; for causal attention, only those whose keys are not after the queries. The scores of a pair are kept in
fast memory as [keys, queries], so that the maxima, sums and bounds of the queries are rows. Several heads share a grid
step, adjacent in the last axis.

The backward kernel computes the scores of a pair once. It visits the pairs by blocks of keys, so the gradient of a
block of queries is complete after its last block of keys; until then it is in a ring of blocks in fast memory.

A bias by distance, such as T5's relative-position bias, is added in the kernel. It is constant along the diagonals of a
block, so a vector of 2 x block numbers describes it; row j of the block is that vector rolled by j. Its gradient is
rolled back and summed over the rows.

Dropout of the weights has the masks of `dropout.attention_dropout`, bit by bit.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from endx_jax.models.dropout import GOLDEN, hashed, head_pairs, kept_half

Array = jax.Array

# Tokens of a block: LARGE_BLOCK for texts that are longer than BLOCK, if it divides T, else BLOCK, which must. The
# heads of a grid step together are a multiple of LANES wide, and at most MOST_LANES or as many as leave the ring of the
# backward kernel in RING bytes. Chosen from the hardware's tiles and the compiler's schedules, not measured.
LARGE_BLOCK, BLOCK, LANES, MOST_LANES, RING = 256, 128, 128, 512, 4 * 2**20
# Score of masked pairs, and initial value of the running maximum, whose exponential of the difference is 0.
LOWEST, NO_MAXIMUM = -1e30, -5e29

# Exponentials are those of 2, which the hardware has, and divisions by what dropout keeps are on sums.
LOG2_E = math.log2(math.e)

# Contracted axes of the matrix products a b^T, a^T b and a b.
TRANSPOSED, LEFT_TRANSPOSED = (((1,), (1,)), ((), ())), (((0,), (0,)), ((), ()))
PLAIN = (((1,), (0,)), ((), ()))


def attend_packed(
    query: Array,
    key: Array,
    value: Array,
    begin: Array,
    end: Array,
    *,
    width: int,
    scale: float,
    causal: bool = False,
    by_distance: Array | None = None,
    words: Array | None = None,
    rate: float = 0.0,
    first_head: Array | int = 0,
    all_heads: int | None = None,
    lengths: Sequence[int] | None = None,
    block: int | None = None,
    interpret: bool = False,
) -> Array:
    """Computes attention of each token over the tokens of its own text, or those at most a window away.

    Args:
      query: [T, H, Dh], the tokens of all texts, concatenated; T is a multiple of `BLOCK`.
      key: [T, H, Dh].
      value: [T, H, Dh].
      begin: int32 [T], first token that each token attends to: the first of its text or of a symmetric window inside
        it; 0 for padding.
      end: int32 [T], one past the last token that each token attends to; 0 for padding.
      width: maximum length of a text in tokens, or the window plus one; the results for longer texts are undefined.
      scale: factor of the scores.
      causal: a token attends to no later token.
      by_distance: float32 [2 width - 1, H], added to the scaled scores; indexed by the key's position minus the query's
        plus width - 1. None adds nothing.
      words: uint32 [2, T], the words that dropout hashes with the places of the keys (`dropout.words_by_place`); None
        for no dropout.
      rate: dropout rate of the attention weights.
      first_head: number of the first of the heads, if others are elsewhere.
      all_heads: number of heads, with those elsewhere; None if there are no others.
      lengths: lengths that the texts may have, for the compiler's estimate of the cost; None for one of width T.
      block: tokens of a block; None chooses by T and the width.
      interpret: emulates the kernel on any platform, slowly.

    Returns:
      [T, H, Dh] in the dtype of `value`, zero for padding; all of query, key, value and by_distance have gradients.
    """
    tokens, heads, head_width = query.shape
    block = block or (LARGE_BLOCK if width > BLOCK and tokens % LARGE_BLOCK == 0 else BLOCK)
    reach = min(math.ceil((width - 1) / block), tokens // block - 1)
    most = max(LANES, min(MOST_LANES, RING // (4 * _most_pairs(reach, causal) * block)))
    group = _heads_at_once(heads, head_width, most)
    all_heads = all_heads or heads
    plan = _Plan(
        heads=heads,
        head_width=head_width,
        group=group,
        block=block,
        reach=reach,
        scale=scale,
        causal=causal,
        rate=0.0 if words is None else rate,
        # Heads 2n and 2n + 1 share a hash, which is computed once if both are in one group.
        paired=group % 2 == 0 and (heads == all_heads or heads % 2 == 0),
        head_pairs=head_pairs(all_heads),
        pairs=_count_pairs(lengths or [tokens], tokens, block, width, causal),
        interpret=interpret,
    )
    windows = None
    if by_distance is not None:
        # For keys `apart` blocks after the queries, entry c belongs to the distance (apart + 1) block - c.
        apart = jnp.arange(-reach, reach + 1)[:, None]
        distance = (apart + 1) * block - jnp.arange(2 * block)[None]
        rows = jnp.clip(distance, 1 - width, width - 1) + width - 1
        windows = jnp.moveaxis(LOG2_E * by_distance[rows], -1, 1).reshape(
            len(apart), plan.groups, plan.group, 2 * block
        )
    flat = [x.reshape(tokens, heads * head_width) for x in (query, key, value)]
    bounds = jnp.stack([begin, end])
    first_head = jnp.asarray(first_head, jnp.int32).reshape(1)
    return _attend(plan, *flat, bounds, words, first_head, windows).reshape(query.shape)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Static description of the kernels.

    Attributes:
      heads: number of heads, H.
      head_width: width of a head, Dh.
      group: heads of a grid step.
      block: tokens of a block.
      reach: maximum number of blocks between a query and a key of the same text.
      scale: factor of the scores.
      causal: a token attends to no later token.
      rate: dropout rate; 0 for no dropout.
      paired: true if the heads that share a hash are in the same group, at known places.
      head_pairs: number of pairs of heads that share a hash, on all devices.
      pairs: expected number of pairs of blocks, for the cost estimate.
      interpret: emulates the kernels.
    """

    heads: int
    head_width: int
    group: int
    block: int
    reach: int
    scale: float
    causal: bool
    rate: float
    paired: bool
    head_pairs: int
    pairs: int
    interpret: bool

    @property
    def kept(self) -> float:
        """Expected share of the weights that dropout keeps."""
        return 1 - self.rate

    @property
    def most_pairs(self) -> int:
        """Maximum number of blocks that a block is paired with."""
        return _most_pairs(self.reach, self.causal)

    @property
    def groups(self) -> int:
        """Number of grid steps for all heads of a pair of blocks."""
        return self.heads // self.group

    @property
    def lanes(self) -> int:
        """Total width of the heads of a grid step."""
        return self.group * self.head_width

    def columns(self, head: int) -> slice:
        """Returns the slice of the last axis that belongs to a head of the group."""
        return slice(head * self.head_width, (head + 1) * self.head_width)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: _Plan, query, key, value, bounds, words, first_head, windows):
    return _forward(plan, query, key, value, bounds, words, first_head, windows)[0]


def _forward(plan, query, key, value, bounds, words, first_head, windows):
    inputs = [("own matrix", query), ("other matrix", key), ("other matrix", value)]
    inputs += [("own words", _seen(plan, bounds)), ("own words", words), ("windows", windows)]
    outputs = [("own matrix", value.dtype), ("own row", jnp.float32)]
    scratch = [(plan.lanes, plan.block), (plan.group, plan.block), (plan.group, plan.block)]
    pairs = _block_pairs(plan, bounds, by_keys=False)
    out, log_total = _run(plan, _forward_kernel, 2, bounds, pairs, first_head, inputs, outputs, scratch)
    return out, (query, key, value, bounds, words, first_head, windows, out, log_total)


def _backward(plan, residuals, gradient):
    query, key, value, bounds, words, first_head, windows, out, log_total = residuals
    products = (out.astype(jnp.float32) * gradient.astype(jnp.float32)).reshape(len(out), plan.heads, -1).sum(-1)
    inner = plan.kept * products.T.reshape(log_total.shape)
    inputs = [("other matrix", query), ("own matrix", key), ("own matrix", value), ("other matrix", gradient)]
    inputs += [("other row", log_total), ("other row", inner)]
    inputs += [("other words", _seen(plan, bounds)), ("other words", words), ("windows", windows)]
    outputs = [("finished matrix", query.dtype), ("own matrix", key.dtype), ("own matrix", value.dtype)]
    outputs += [] if windows is None else [("windows", jnp.float32)]
    ring = (plan.most_pairs, plan.lanes, plan.block)
    scratch = [ring, (plan.block, plan.lanes), (plan.block, plan.lanes)]
    pairs = _block_pairs(plan, bounds, by_keys=True)
    gradients = _run(plan, _backward_kernel, 5, bounds, pairs, first_head, inputs, outputs, scratch)
    to_windows = None if windows is None else gradients[3] / (plan.kept * LOG2_E)
    return *gradients[:3], None, None, None, to_windows


_attend.defvjp(_forward, _backward)


def _seen(plan: _Plan, bounds: Array) -> Array:
    """Returns the bounds of what each token attends to; blocks are paired by those of its text or symmetric window."""
    return bounds.at[1].min(jnp.arange(1, bounds.shape[1] + 1, dtype=bounds.dtype)) if plan.causal else bounds


def _block_pairs(plan: _Plan, bounds: Array, *, by_keys: bool) -> tuple[Array, tuple[Array, ...]]:
    """Returns the number of pairs of blocks to compute, and the arrays that describe them, in order of `own`.

    The relation of sharing a text is symmetric. Causal attention keeps the pairs whose keys are not after the queries.
    The arrays are int32: `own` [P], the first block of each pair, P being the largest number of pairs; and for each
    block [N]: `shift`, so that the second block of pair p is p + shift[own]; the first and the last block that it is
    paired with as `own`, and the same as `other`; `finished`, the number of blocks whose last pair as `other` is with
    it or one before it. A block of padding is paired with itself.

    Args:
      plan: static description of the kernels.
      bounds: int32 [2, T], begin and end as in `attend_packed`.
      by_keys: `own` are the blocks of keys, not those of queries.
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


def _run(
    plan: _Plan, kernel, products: int, bounds, pairs, first_head, inputs: list, outputs: list, scratch: list
) -> list:
    """Runs a kernel on each pair of blocks.

    Args:
      plan: static description of the kernels.
      kernel: function of the plan, the `_Step`, and references to inputs, outputs and scratch memory.
      products: number of matrix products per head and pair of blocks, for the compiler's cost estimate.
      bounds: int32 [2, T], begin and end as in `attend_packed`.
      pairs: result of `_block_pairs`.
      first_head: int32 [1], as in `attend_packed`.
      inputs: pairs of a form and an array, or None. A form names the block that the kernel reads (`own`, by which the
        pairs are ordered, or `other`, which is paired with it) and the kind of array.
      outputs: pairs of a form and a dtype. `finished` is the next `other` block whose last pair is to come.
      scratch: shapes of float32 scratch memory.

    Returns:
      The outputs.
    """
    tokens = bounds.shape[1]
    shapes = {
        "matrix": (tokens, plan.groups * plan.lanes),
        "row": (plan.groups, plan.group, tokens),
        "windows": (2 * plan.reach + 1, plan.groups, plan.group, 2 * plan.block),
    }

    def spec(form: str) -> pl.BlockSpec:
        which, kind = form.split() if " " in form else ("", form)

        def place(pair, own, shift, *rest):
            *_, finished, _ = rest
            other = pair + shift[own[pair]]
            return {"own": own[pair], "other": other, "finished": jnp.minimum(other, finished[own[pair]])}[which]

        if kind == "windows":
            shape = shapes["windows"]
            return pl.BlockSpec((shape[0], None, *shape[2:]), lambda group, *_: (0, group, 0, 0))
        if kind == "words":
            return pl.BlockSpec((2, plan.block), lambda group, *at: (0, place(*at)))
        if kind == "row":
            return pl.BlockSpec((None, plan.group, plan.block), lambda group, *at: (group, 0, place(*at)))
        return pl.BlockSpec((plan.block, plan.lanes), lambda group, *at: (place(*at), group))

    held = sum(4 * math.prod(shape) for shape in scratch)
    present = [x is not None for _, x in inputs]
    inputs = [(form, x) for form, x in inputs if x is not None]
    count, described = pairs
    scores = plan.heads * plan.pairs * plan.block**2
    cost = pl.CostEstimate(
        flops=products * scores * 2 * plan.head_width,
        transcendentals=scores,
        bytes_accessed=sum(
            x.nbytes if form.startswith("own") else x.nbytes * plan.pairs * plan.block // tokens for form, x in inputs
        ),
    )

    def body(own, shift, first, last, other_first, other_last, finished, first_head, *refs):
        del finished
        group, pair = pl.program_id(0), pl.program_id(1)
        at = own[pair]
        other = pair + shift[at]
        step = _Step(
            own=at,
            other=other,
            begins=other == first[at],
            ends=other == last[at],
            other_begins=at == other_first[other],
            other_ends=at == other_last[other],
            first=pair == 0,
            head=first_head[0] + group * plan.group,
        )
        read = iter(refs)
        kernel(plan, step, *(next(read) if exists else None for exists in present), *read)

    return pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(shapes[form.split()[-1]], dtype) for form, dtype in outputs],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(described) + 1,
            grid=(plan.groups, count),
            in_specs=[spec(form) for form, _ in inputs],
            out_specs=[spec(form) for form, _ in outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"),
            vmem_limit_bytes=3 * RING + held if held > RING else None,
        ),
        cost_estimate=cost,
        interpret=plan.interpret,
    )(*described, first_head, *(x for _, x in inputs))


@dataclasses.dataclass(frozen=True)
class _Step:
    """Scalars of a grid step: a pair of blocks and a group of heads.

    Attributes:
      own: the first block of the pair.
      other: the second block of the pair.
      begins: true for the first pair of `own`.
      ends: true for the last pair of `own`.
      other_begins: true for the first pair of `other`.
      other_ends: true for the last pair of `other`.
      first: true for the first pair of the group.
      head: number of the group's first head among all heads.
    """

    own: Array
    other: Array
    begins: Array
    ends: Array
    other_begins: Array
    other_ends: Array
    first: Array
    head: Array


def _forward_kernel(plan, step, query, key, value, bounds, words, windows, out, log_total, attended, highest, total):
    """Adds a block of keys to the running maxima, sums and weighted values of a block of queries."""

    @pl.when(step.begins)
    def start():
        attended[...] = jnp.zeros(attended.shape, attended.dtype)
        highest[...] = jnp.full(highest.shape, NO_MAXIMUM, highest.dtype)
        total[...] = jnp.zeros(total.shape, total.dtype)

    mask, dropout = _mask(plan, step.other, bounds), _Dropout(plan, step.other, step.head, words)
    for head in range(plan.group):
        at, columns = slice(head, head + 1), plan.columns(head)
        scores = _scores(plan, head, step.other - step.own, query, key, windows, mask)
        top = jnp.maximum(highest[at], jnp.max(scores, axis=0, keepdims=True))
        weights = jnp.exp2(scores - top)
        shrink = jnp.exp2(highest[at] - top)
        highest[at] = top
        total[at] = shrink * total[at] + jnp.sum(weights, axis=0, keepdims=True)
        part = _product(value[:, columns], dropout.drop(weights, head).astype(value.dtype), LEFT_TRANSPOSED)
        attended[columns] = shrink * attended[columns] + part

    @pl.when(step.ends)
    def finish():
        for head in range(plan.group):
            at, columns = slice(head, head + 1), plan.columns(head)
            whole = jnp.where(total[at] == 0, 1.0, total[at])  # padding has no keys
            attended[columns] = attended[columns] / (plan.kept * whole)
            log_total[at] = highest[at] + jnp.log2(whole)
        out[...] = attended[...].T.astype(out.dtype)


def _backward_kernel(
    plan, step, query, key, value, gradient, log_total, inner, bounds, words, windows, to_query, to_key, to_value, *rest
):
    """Adds the contribution of a pair to the gradients of its block of keys and values, of queries, and of the bias."""
    *to_windows, ring, keys, values = rest
    queries = ring.at[jax.lax.rem(step.other, ring.shape[0])]

    @pl.when(step.begins)
    def start():
        keys[...] = jnp.zeros(keys.shape, keys.dtype)
        values[...] = jnp.zeros(values.shape, values.dtype)

    @pl.when(step.other_begins)
    def start_queries():
        queries[...] = jnp.zeros(queries.shape, queries.dtype)

    if to_windows:

        @pl.when(step.first)
        def start_windows():
            to_windows[0][...] = jnp.zeros(to_windows[0].shape, to_windows[0].dtype)

    apart = step.own - step.other
    mask, dropout = _mask(plan, step.own, bounds), _Dropout(plan, step.own, step.head, words)
    for head in range(plan.group):
        at, columns = slice(head, head + 1), plan.columns(head)
        weights = jnp.exp2(_scores(plan, head, apart, query, key, windows, mask) - log_total[at])
        to_weights = dropout.drop(_product(value[:, columns], gradient[:, columns], TRANSPOSED), head)
        to_scores = weights * (to_weights - inner[at])
        weights, rounded = dropout.drop(weights, head).astype(value.dtype), to_scores.astype(key.dtype)
        values[:, columns] += _product(weights, gradient[:, columns], PLAIN)
        keys[:, columns] += _product(rounded, query[:, columns], PLAIN)
        queries[columns] += _product(key[:, columns], rounded, LEFT_TRANSPOSED)
        if to_windows:
            to_windows[0][apart + plan.reach, at] += _sum_diagonals(to_scores)

    @pl.when(step.ends)
    def finish():
        to_key[...] = (plan.scale / plan.kept * keys[...]).astype(to_key.dtype)
        to_value[...] = (values[...] / plan.kept).astype(to_value.dtype)

    @pl.when(step.other_ends)
    def finish_queries():
        to_query[...] = (plan.scale / plan.kept * queries[...].T).astype(to_query.dtype)


class _Dropout:
    """Dropout of the weights of a pair of blocks, as `dropout.attention_dropout` draws them.

    Args:
      plan: static description of the kernels.
      keys: the block of keys.
      first: number of the group's first head among all heads.
      words: uint32 [2, block], the words of the queries, as in `attend_packed`; None for no dropout.
    """

    def __init__(self, plan: _Plan, keys: Array, first: Array, words):
        self._plan, self._first, self._words = plan, first, words
        self._hashes: dict[int, Array] = {}
        if plan.rate:
            place = _places(plan, keys).astype(jnp.uint32)
            self._numbers = place * np.uint32(plan.head_pairs * int(GOLDEN) % 2**32) + words[0:1]

    def drop(self, x: Array, head: int) -> Array:
        """Zeroes the dropped entries of an array [keys, queries] of a head of the group."""
        if not self._plan.rate:
            return x
        return jnp.where(kept_half(self._hash(head), self._half(head), self._plan.rate), x, 0.0)

    def _half(self, head: int) -> Array | int:
        """Returns 1 if a head is the second of the two that share a hash, else 0."""
        return head % 2 if self._plan.paired else ((self._first + head) & 1).astype(jnp.uint32)

    def _hash(self, head: int) -> Array:
        shared = head // 2 * 2 if self._plan.paired else head
        if shared not in self._hashes:
            pair = ((self._first + head) >> 1).astype(jnp.uint32)
            self._hashes[shared] = hashed(self._numbers + pair * GOLDEN, self._words[1:2])
        return self._hashes[shared]


def _places(plan: _Plan, block: Array) -> Array:
    """Returns the place of each key of a block, int32 [keys, queries]."""
    return block * plan.block + jax.lax.broadcasted_iota(jnp.int32, (plan.block, plan.block), 0)


def _mask(plan: _Plan, keys: Array, bounds) -> Array:
    """Returns the mask of a pair of blocks, bool [keys, queries], true where the query attends to the key."""
    place = _places(plan, keys)
    return (bounds[0:1] <= place) & (place < bounds[1:2])


def _scores(plan: _Plan, head: int, apart: Array, query, key, windows, mask: Array) -> Array:
    """Returns the masked scores of a head, [keys, queries], for keys `apart` blocks after the queries."""
    columns = plan.columns(head)
    scores = _product(key[:, columns], query[:, columns], TRANSPOSED) * (plan.scale * LOG2_E)
    if windows is not None:
        scores += _lay_diagonals(windows[apart + plan.reach, head : head + 1], plan.block)
    return jnp.where(mask, scores, LOWEST)


def _lay_diagonals(window: Array, block: int) -> Array:
    """Returns the block [block, block] whose entry (j, i) is window[block + i - j], from a window [1, 2 block]."""
    rows = jnp.broadcast_to(window, (block, 2 * block))
    return pltpu.roll(rows, block, 1, stride=1, stride_axis=0)[:, :block]


def _sum_diagonals(scores: Array) -> Array:
    """Returns the sums [1, 2 block] of the diagonals of a block; the transpose of `_lay_diagonals`."""
    block = len(scores)
    rows = jnp.concatenate([jnp.zeros_like(scores), scores], axis=1)
    # Rolls row j back by j in log2(block) steps: each rolls the second half of the rows back and adds it to the first.
    while (half := len(rows) // 2) > 0:
        rows = rows[:half] + pltpu.roll(rows[half:], 2 * block - half, 1)
    return rows


def _product(a: Array, b: Array, axes) -> Array:
    """Returns the product of two matrices in float32; float32 matrices are not rounded to bfloat16."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else jax.lax.Precision.DEFAULT
    return jax.lax.dot_general(a, b, axes, precision=precision, preferred_element_type=jnp.float32)


def _heads_at_once(heads: int, head_width: int, most: int) -> int:
    """Returns the number of heads of a grid step: a divisor of H that fills whole lanes, at most `most`, or H."""
    fitting = (
        n for n in range(heads, 0, -1) if heads % n == 0 and n * head_width <= most and n * head_width % LANES == 0
    )
    return next(fitting, heads)


def _most_pairs(reach: int, causal: bool) -> int:
    return (1 if causal else 2) * reach + 1


def _count_pairs(lengths: Sequence[int], tokens: int, block: int, width: int, causal: bool) -> int:
    """Returns the number of pairs of blocks to compute, of texts of these lengths or of a window's width."""
    ends = np.minimum(np.cumsum(lengths), tokens)
    begins = np.concatenate([[0], ends[:-1]])
    starts = np.arange(0, tokens, block)
    first = begins[np.minimum(np.searchsorted(ends, starts, side="right"), len(ends) - 1)]
    last = ends[np.minimum(np.searchsorted(ends, starts + block, side="left"), len(ends) - 1)] - 1
    first, last = (
        np.maximum(first, starts - width + 1),
        np.minimum(last, starts + block + (-1 if causal else width - 2)),
    )
    return int(np.sum(np.maximum(last // block - first // block, 0) + 1))
