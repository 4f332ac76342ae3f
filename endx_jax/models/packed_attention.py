r"""Flash attention for TPUs over texts that are concatenated without padding (Dao 2023; Pallas).

Tokens [T] are divided into blocks. The texts are contiguous, so the keys of a block of queries are a range of blocks,
which is computed from the bounds of the texts at run time; other blocks are skipped. The scores of one block at a time
are kept in fast memory as [keys, queries], so that the maxima, sums and bounds of the queries are rows.

A bias by distance, such as T5's relative-position bias, is added in the kernel. It is constant along the diagonals of a
block, so a vector of 2 x block numbers describes it; row j of the block is that vector rolled by j. Its gradient is
rolled back and summed over the rows. Several heads share a grid step, adjacent in the last axis.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Array = jax.Array

# Tokens of a block: LARGE_BLOCK if it divides T, else BLOCK, which must. The heads of a grid step together are a
# multiple of LANES wide, and at most MOST_LANES. Chosen from the hardware's tiles and the compiler, not measured.
LARGE_BLOCK, BLOCK, LANES, MOST_LANES = 256, 128, 128, 256
# Score of masked pairs, and initial value of the running maximum.
LOWEST = -1e30

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
    by_distance: Array | None = None,
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
      by_distance: float32 [2 width - 1, H], added to the scaled scores; indexed by the key's position minus the query's
        plus width - 1. None adds nothing.
      block: tokens of a block; None chooses by T.
      interpret: emulates the kernel on any platform, slowly.

    Returns:
      [T, H, Dh] in the dtype of `value`, zero for padding; all of query, key, value and by_distance have gradients.
    """
    tokens, heads, head_width = query.shape
    block = block or (LARGE_BLOCK if tokens % LARGE_BLOCK == 0 else BLOCK)
    reach = math.ceil((width - 1) / block)
    plan = _Plan(heads, head_width, _heads_at_once(heads, head_width), block, reach, scale, interpret)
    windows = None
    if by_distance is not None:
        # For keys `apart` blocks after the queries, entry c belongs to the distance (apart + 1) block - c.
        apart = jnp.arange(-reach, reach + 1)[:, None]
        distance = (apart + 1) * block - jnp.arange(2 * block)[None]
        rows = jnp.clip(distance, 1 - width, width - 1) + width - 1
        windows = jnp.moveaxis(by_distance[rows], -1, 1).reshape(len(apart), plan.groups, plan.group, 2 * block)
    flat = [x.reshape(tokens, heads * head_width) for x in (query, key, value)]
    return _attend(plan, *flat, begin, end, windows).reshape(query.shape)


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
      interpret: emulates the kernels.
    """

    heads: int
    head_width: int
    group: int
    block: int
    reach: int
    scale: float
    interpret: bool

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
def _attend(plan: _Plan, query: Array, key: Array, value: Array, begin: Array, end: Array, windows: Array | None):
    return _forward(plan, query, key, value, begin, end, windows)[0]


def _forward(plan, query, key, value, begin, end, windows):
    inputs = [("own matrix", query), ("other matrix", key), ("other matrix", value)]
    inputs += [("own bound", begin[None]), ("own bound", end[None])]
    outputs = [("own matrix", value.dtype), ("own row", jnp.float32)]
    scratch = [(plan.lanes, plan.block), (plan.group, plan.block), (plan.group, plan.block)]
    out, log_total = _run(plan, _forward_kernel, 2, begin, end, inputs, outputs, windows, scratch)
    return out, (query, key, value, begin, end, windows, out, log_total)


def _backward(plan, kept, gradient):
    query, key, value, begin, end, windows, out, log_total = kept
    products = (out.astype(jnp.float32) * gradient.astype(jnp.float32)).reshape(len(out), plan.heads, -1).sum(-1)
    inner = products.T.reshape(log_total.shape)

    def inputs(queries: str, keys: str) -> list:
        matrices = [(queries, query), (keys, key), (keys, value), (queries, gradient)]
        rows = [("bound", begin[None]), ("bound", end[None]), ("row", log_total), ("row", inner)]
        return [(f"{which} matrix", x) for which, x in matrices] + [(f"{queries} {form}", x) for form, x in rows]

    outputs = [("own matrix", query.dtype)] + [("windows", jnp.float32)] * (windows is not None)
    scratch = [(plan.lanes, plan.block)]
    to_query, *to_windows = _run(plan, _query_kernel, 3, begin, end, inputs("own", "other"), outputs, windows, scratch)
    outputs = [("own matrix", key.dtype), ("own matrix", value.dtype)]
    scratch = [(plan.block, plan.lanes)] * 2
    to_key, to_value = _run(plan, _key_kernel, 4, begin, end, inputs("other", "own"), outputs, windows, scratch)
    return to_query, to_key, to_value, None, None, to_windows[0] if to_windows else None


_attend.defvjp(_forward, _backward)


def _run(
    plan: _Plan, kernel, products: int, begin: Array, end: Array, inputs: list, outputs: list, windows, scratch: list
) -> list:
    """Runs a kernel on each pair of blocks that share a text.

    Args:
      plan: static description of the kernels.
      kernel: function of the plan, the pair, and references to inputs, windows or None, outputs and scratch memory.
      products: number of matrix products per head and pair of blocks, for the compiler's cost estimate.
      begin: int32 [T], as in `attend_packed`.
      end: int32 [T], as in `attend_packed`.
      inputs: pairs of a form and an array. A form names the block that the kernel reads (`own`, over which the grid
        runs, or `other`, which is paired with it) and the kind of array.
      outputs: pairs of a form and a dtype.
      windows: diagonals of the bias, or None.
      scratch: shapes of float32 scratch memory.

    Returns:
      The outputs.
    """
    count, tokens = len(begin) // plan.block, len(begin)
    none = end.reshape(count, -1) == 0
    first = jnp.min(jnp.where(none, tokens, begin.reshape(count, -1)), axis=1) // plan.block
    last = (jnp.max(end.reshape(count, -1), axis=1) - 1) // plan.block
    pairs = jnp.clip(last + 1 - first, 0, 2 * plan.reach + 1)
    window_shape = (2 * plan.reach + 1, plan.groups, plan.group, 2 * plan.block)
    shapes = {
        "matrix": (tokens, plan.groups * plan.lanes),
        "row": (plan.groups, plan.group, tokens),
        "windows": window_shape,
    }

    def spec(form: str) -> pl.BlockSpec:
        which, form = form.split() if " " in form else ("", form)

        def place(own, step, first, pairs):
            # Steps after the last pair compute nothing; they name its block again, so that nothing is fetched.
            return own if which == "own" else jnp.minimum(first[own] + jnp.clip(step, 0, pairs[own] - 1), count - 1)

        if form == "windows":
            return pl.BlockSpec((window_shape[0], None, *window_shape[2:]), lambda group, *_: (0, group, 0, 0))
        if form == "bound":
            return pl.BlockSpec((1, plan.block), lambda group, *at: (0, place(*at)))
        if form == "row":
            return pl.BlockSpec((None, plan.group, plan.block), lambda group, *at: (group, 0, place(*at)))
        return pl.BlockSpec((plan.block, plan.lanes), lambda group, *at: (place(*at), group))

    if windows is not None:
        inputs = [*inputs, ("windows", windows)]

    # An upper bound, for texts of maximum length; the compiler cannot inspect a kernel.
    scores = plan.heads * count * min(2 * plan.reach + 1, plan.reach + 2) * plan.block**2
    cost = pl.CostEstimate(
        flops=products * scores * 2 * plan.head_width,
        transcendentals=scores,
        bytes_accessed=sum(x.nbytes * (plan.reach + 2 if form.startswith("other") else 1) for form, x in inputs),
    )

    def body(first, pairs, *refs):
        own, step = pl.program_id(1), pl.program_id(2)
        read, rest = refs[: len(inputs)], refs[len(inputs) :]
        if windows is None:
            read = (*read, None)
        kernel(plan, (own, first[own] + step, step, pairs[own]), *read, *rest)

    return pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(shapes[form.split()[-1]], dtype) for form, dtype in outputs],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(plan.groups, count, 2 * plan.reach + 1),
            in_specs=[spec(form) for form, _ in inputs],
            out_specs=[spec(form) for form, _ in outputs],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        cost_estimate=cost,
        interpret=plan.interpret,
    )(first, pairs, *(x for _, x in inputs))


def _forward_kernel(plan, pair, query, key, value, begin, end, windows, out, log_total, attended, highest, total):
    """Adds a block of keys to the running maxima, sums and weighted values of a block of queries."""
    own, other, step, pairs = pair

    @pl.when(step == 0)
    def start():
        attended[...] = jnp.zeros(attended.shape, attended.dtype)
        highest[...] = jnp.full(highest.shape, LOWEST, highest.dtype)
        total[...] = jnp.zeros(total.shape, total.dtype)

    @pl.when(step < pairs)
    def add():
        mask = _mask(plan, other, begin, end)
        for head in range(plan.group):
            at, columns = slice(head, head + 1), plan.columns(head)
            scores = _scores(plan, head, other - own, query, key, windows, mask)
            top = jnp.maximum(highest[at], jnp.max(scores, axis=0, keepdims=True))
            weights = jnp.where(mask, jnp.exp(scores - top), 0.0)
            shrink = jnp.exp(highest[at] - top)
            highest[at] = top
            total[at] = shrink * total[at] + jnp.sum(weights, axis=0, keepdims=True)
            part = _product(value[:, columns], weights.astype(value.dtype), LEFT_TRANSPOSED)
            attended[columns] = shrink * attended[columns] + part

    @pl.when(step == 2 * plan.reach)
    def finish():
        for head in range(plan.group):
            at, columns = slice(head, head + 1), plan.columns(head)
            whole = jnp.where(total[at] == 0, 1.0, total[at])  # padding has no keys
            attended[columns] = attended[columns] / whole
            log_total[at] = highest[at] + jnp.log(whole)
        out[...] = attended[...].T.astype(out.dtype)


def _query_kernel(plan, pair, query, key, value, gradient, begin, end, log_total, inner, windows, *refs):
    """Adds the contribution of a block of keys to the gradients of a block of queries and of the bias."""
    (own, other, step, pairs), (to_query, *to_windows, sums) = pair, refs

    @pl.when(step == 0)
    def start():
        sums[...] = jnp.zeros(sums.shape, sums.dtype)

    if to_windows:

        @pl.when((step == 0) & (own == 0))
        def start_windows():
            to_windows[0][...] = jnp.zeros(to_windows[0].shape, to_windows[0].dtype)

    @pl.when(step < pairs)
    def add():
        mask = _mask(plan, other, begin, end)
        for head in range(plan.group):
            at, columns = slice(head, head + 1), plan.columns(head)
            scores = _scores(plan, head, other - own, query, key, windows, mask)
            _, to_scores = _weights_and_gradient(scores, mask, value, gradient, log_total, inner, at, columns)
            sums[columns] += _product(key[:, columns], to_scores.astype(key.dtype), LEFT_TRANSPOSED)
            if to_windows:
                to_windows[0][other - own + plan.reach, at] += _sum_diagonals(to_scores)

    @pl.when(step == 2 * plan.reach)
    def finish():
        to_query[...] = (plan.scale * sums[...].T).astype(to_query.dtype)


def _key_kernel(
    plan, pair, query, key, value, gradient, begin, end, log_total, inner, windows, to_key, to_value, keys, values
):
    """Adds the contribution of a block of queries to the gradients of a block of keys and values."""
    own, other, step, pairs = pair

    @pl.when(step == 0)
    def start():
        keys[...] = jnp.zeros(keys.shape, keys.dtype)
        values[...] = jnp.zeros(values.shape, values.dtype)

    @pl.when(step < pairs)
    def add():
        mask = _mask(plan, own, begin, end)
        for head in range(plan.group):
            at, columns = slice(head, head + 1), plan.columns(head)
            scores = _scores(plan, head, own - other, query, key, windows, mask)
            weights, to_scores = _weights_and_gradient(scores, mask, value, gradient, log_total, inner, at, columns)
            values[:, columns] += _product(weights.astype(value.dtype), gradient[:, columns], PLAIN)
            keys[:, columns] += _product(to_scores.astype(query.dtype), query[:, columns], PLAIN)

    @pl.when(step == 2 * plan.reach)
    def finish():
        to_key[...] = (plan.scale * keys[...]).astype(to_key.dtype)
        to_value[...] = values[...].astype(to_value.dtype)


def _weights_and_gradient(scores, mask, value, gradient, log_total, inner, at: slice, columns: slice):
    """Returns the attention weights of a head, recomputed from its scores, and the gradient of the scores."""
    weights = jnp.where(mask, jnp.exp(scores - log_total[at]), 0.0)
    to_weights = _product(value[:, columns], gradient[:, columns], TRANSPOSED)
    return weights, weights * (to_weights - inner[at])


def _mask(plan: _Plan, keys: Array, begin, end) -> Array:
    """Returns the mask of a pair of blocks, bool [keys, queries], true where the query attends to the key."""
    place = keys * plan.block + jax.lax.broadcasted_iota(jnp.int32, (plan.block, plan.block), 0)
    return (begin[...] <= place) & (place < end[...])


def _scores(plan: _Plan, head: int, apart: Array, query, key, windows, mask: Array) -> Array:
    """Returns the masked scores of a head, [keys, queries], for keys `apart` blocks after the queries."""
    columns = plan.columns(head)
    scores = _product(key[:, columns], query[:, columns], TRANSPOSED) * plan.scale
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


def _heads_at_once(heads: int, head_width: int) -> int:
    """Returns the number of heads of a grid step: a divisor of H that fills whole lanes, or H."""
    fitting = (
        n
        for n in range(heads, 0, -1)
        if heads % n == 0 and n * head_width <= MOST_LANES and n * head_width % LANES == 0
    )
    return next(fitting, heads)
