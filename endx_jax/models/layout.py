"""Layouts of the tokens of B texts during encoding: padded rows, or packed end to end without padding.

Operations on single tokens (products with weights, norms, activations) work on arrays `[..., D]` of either layout.
Operations that combine the tokens of a text (attention, recurrences, pooling) get padded rows from the layout.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.batch import Packing, Tokens
from endx_jax.models.dropout import fold, position_keys
from endx_jax.models.sharding_hints import platform
from endx_jax.numerics import round_up

Array = jax.Array

# On TPUs the tokens of all texts together are a multiple of this: a block of `packed_attention`.
BLOCK = 128


@flax.struct.dataclass
class Padded:
    """Layout with one padded row per text; token arrays are `[B, L, ...]`.

    Attributes:
      mask: bool [B, L], true at real tokens.
      second: int32 [B], position at which each text's second segment begins; None if every text has one segment.
      ids: int32 [B, L], the token ids; None if no module needs them.
    """

    mask: Array
    second: Array | None = None
    ids: Array | None = None

    @property
    def width(self) -> int:
        """Maximum length of a text, in tokens."""
        return self.mask.shape[1]

    def by_position(self, table: Array) -> Array:
        """Returns the row of a table [N, D] for each token's position, to add to a token array."""
        return table[None, : self.width]

    def by_position_after(self, table: Array, pad_id: int) -> Array:
        """Returns the row of a table for each token by RoBERTa's positions, which start at `pad_id` + 1.

        The positions count the tokens that are not `pad_id`. A token of a text that is `pad_id` has row `pad_id`.
        """
        if self.ids is None:
            return self.by_position(table[pad_id + 1 :])
        real = self.ids != pad_id
        return table[pad_id + jnp.where(real, jnp.cumsum(real, axis=1, dtype=jnp.int32), 0)]

    def by_segment(self, table: Array) -> Array:
        """Returns the row of a table [2, D] for each token's segment, to add to a token array."""
        if self.second is None:
            return table[None, None, 0]
        return _rows_of(table, jnp.arange(self.width)[None] >= self.second[:, None])

    def token_keys(self, keys: Array | None) -> Array | None:
        """Folds each token's position into the key of its text, from keys [B]; None stays None."""
        return None if keys is None else position_keys(keys, self.width)

    def rows(self, tokens: Any, texts: Any = None) -> list[tuple[Any, Array, Any]]:
        """Returns padded rows as a list of (token arrays [R, W, ...], mask [R, W], arrays of texts [R, ...])."""
        return [(tokens, self.mask, texts)]

    def join(self, rows: Sequence[Array]) -> Array:
        """Returns the token array of padded rows [R, W, ...]; the inverse of `rows`."""
        return rows[0]

    def extents(self) -> tuple[Array, Array]:
        """Returns the position of each token in its text and the length of its text, int32 token arrays [...].

        A token of the padding is not before the end of its text.
        """
        lengths = jnp.sum(self.mask, axis=1, dtype=jnp.int32, keepdims=True)
        position = jnp.arange(self.width, dtype=jnp.int32)[None]
        return jnp.broadcast_to(position, self.mask.shape), jnp.broadcast_to(lengths, self.mask.shape)

    def pad(self, tokens: Array) -> Array:
        """Returns a token array as padded rows [B, L, D], in the order of the texts."""
        return tokens


@flax.struct.dataclass
class Packed:
    """Layout with the texts concatenated in order of length; token arrays are `[1, T, ...]`.

    `rows` cuts the tokens into buckets of texts of similar length. The embedding of a text that does not fit into
    `packing` is NaN.

    Attributes:
      order: int32 [B], indices of the texts, sorted by length.
      lengths: int32 [B], lengths of the sorted texts. All fields below refer to the sorted texts.
      text: int32 [T], index of each token's text; undefined for padding.
      position: int32 [T], position of each token in its text.
      to_rows: int32 [P], index of the token at each position of the buckets' rows; T for padding.
      to_tokens: int32 [T], position of each token in the buckets' rows; P for padding and for tokens beyond the row.
      shape: (B, L), shape of the padded form.
      packing: static shapes of the packed form.
      second: int32 [B], position at which each text's second segment begins; None if every text has one segment.
      ids: int32 [T], the token ids; None if no module needs them.
    """

    order: Array
    lengths: Array
    text: Array
    position: Array
    to_rows: Array
    to_tokens: Array
    shape: tuple[int, int] = flax.struct.field(pytree_node=False)
    packing: Packing = flax.struct.field(pytree_node=False)
    second: Array | None = None
    ids: Array | None = None

    @property
    def width(self) -> int:
        """Maximum length of a text, in tokens."""
        return self.packing.width

    def by_position(self, table: Array) -> Array:
        """Returns table rows by position, as `Padded.by_position`."""
        return table[self.position][None]

    def by_position_after(self, table: Array, pad_id: int) -> Array:
        """Returns table rows by RoBERTa's positions, as `Padded.by_position_after`."""
        if self.ids is None:
            return self.by_position(table[pad_id + 1 :])
        real = self.ids != pad_id
        count = jnp.cumsum(real, dtype=jnp.int32)
        first = jnp.arange(len(count)) - self.position
        before = count[first] - real[first]
        return table[pad_id + jnp.where(real, count - before, 0)][None]

    def by_segment(self, table: Array) -> Array:
        """Returns table rows by segment, as `Padded.by_segment`."""
        if self.second is None:
            return table[None, None, 0]
        return _rows_of(table, (self.position >= self.second[self.text])[None])

    def token_keys(self, keys: Array | None) -> Array | None:
        """Returns the same keys as `Padded.token_keys`."""
        return None if keys is None else fold(keys[self.order][self.text], self.position)[None]

    def rows(self, tokens: Any, texts: Any = None) -> list[tuple[Any, Array, Any]]:
        """Returns padded rows as `Padded.rows`, one entry per bucket."""
        placed = jax.tree.map(lambda x: _move(x[0], self.to_rows, self.to_tokens), tokens)
        texts = jax.tree.map(lambda x: x[self.order], texts)
        buckets, row, place = [], 0, 0
        for count, width in self.packing.buckets:
            end_row, end = row + count, place + count * width
            bucket = jax.tree.map(lambda x: x[place:end].reshape(count, width, *x.shape[1:]), placed)  # noqa: B023
            mask = jnp.arange(width)[None] < self.lengths[row:end_row, None]
            buckets.append((bucket, mask, jax.tree.map(lambda x: x[row:end_row], texts)))  # noqa: B023
            row, place = end_row, end
        return buckets

    def join(self, rows: Sequence[Array]) -> Array:
        """Joins buckets into a token array, as `Padded.join`."""
        places = jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in rows])
        return _move(places, self.to_tokens, self.to_rows)[None]

    def extents(self) -> tuple[Array, Array]:
        """Returns positions and lengths of texts as `Padded.extents`."""
        real = jnp.arange(self.packing.tokens) < jnp.sum(self.lengths)
        return self.position[None], jnp.where(real, self.lengths[self.text], 0)[None]

    def pad(self, tokens: Array) -> Array:
        """Returns padded rows as `Padded.pad`, with zeros at padding."""
        count, length = self.shape
        rank = jnp.argsort(self.order)
        lengths = self.lengths[rank]
        columns = jnp.arange(length)
        ends = jnp.cumsum(self.lengths)
        index = ((ends - self.lengths)[rank][:, None] + columns[None]).reshape(-1)
        real = jnp.arange(self.packing.tokens) < ends[-1]
        place = jnp.where(real, self.order[self.text] * length + self.position, count * length)
        padded = _move(tokens[0], index, place).reshape(count, length, -1)
        fits = (self.lengths <= self.packing.row_widths) & (ends <= self.packing.tokens)
        padded = jnp.where(fits[rank][:, None, None], padded, jnp.nan)
        return jnp.where((columns[None] < lengths[:, None])[:, :, None], padded, 0)


Layout = Padded | Packed


def lay_out(tokens: Tokens) -> tuple[Array, Layout]:
    """Returns the token ids for an encoder, [B, L] or [1, T], and their layout."""
    packing = tokens.packing
    if packing is None:
        return tokens.ids, Padded(tokens.mask, tokens.second, tokens.ids)
    if platform() == "tpu":
        packing = dataclasses.replace(packing, tokens=round_up(packing.tokens, BLOCK))
    lengths = jnp.sum(tokens.mask, axis=1, dtype=jnp.int32)
    order = jnp.argsort(lengths)
    lengths = lengths[order]
    ends = jnp.cumsum(lengths)
    first, total = ends - lengths, ends[-1]

    token = jnp.arange(packing.tokens)
    # A binary search takes several kernels for each of its steps on a GPU, and comparing with all ends is one.
    method = "compare_all" if platform() == "gpu" else "scan"
    text = jnp.minimum(jnp.searchsorted(ends, token, side="right", method=method), len(lengths) - 1)
    real = token < total
    position = jnp.where(real, token - first[text], 0)

    # Start and width of each text's row in the buckets, and the text and column of each position there.
    width = packing.row_widths
    begin = np.cumsum(width) - width
    row = np.repeat(np.arange(len(width)), width)
    column = np.arange(len(row)) - begin[row]
    placed = real & (position < jnp.asarray(width)[text])
    to_tokens = jnp.where(placed, jnp.asarray(begin)[text] + position, len(row))
    to_rows = jnp.where(column < lengths[row], first[row] + column, packing.tokens)

    ids = jnp.where(real, tokens.ids[order[text], position], 0)
    layout = Packed(
        order,
        lengths,
        text,
        position,
        to_rows,
        to_tokens,
        shape=(len(order), tokens.ids.shape[1]),
        packing=packing,
        second=None if tokens.second is None else tokens.second[order],
        ids=ids,
    )
    return ids[None], layout


def _rows_of(table: Array, second: Array) -> Array:
    """Selects the second row of a table [2, D] where `second` is true, else the first; the gradient has no scatter."""
    return jnp.where(second[:, :, None], table[None, None, 1], table[None, None, 0])


@jax.custom_vjp
def _move(x: Array, index: Array, back: Array) -> Array:
    """Returns x[index] for x [N, ...], zero where the index is N or more."""
    return x.at[index].get(mode="fill", fill_value=0)


def _move_forward(x, index, back):
    return _move(x, index, back), back


def _move_backward(back, gradient):
    # A gather by the inverse of the index, since a scatter is slow on accelerators.
    return gradient.at[back].get(mode="fill", fill_value=0), None, None


_move.defvjp(_move_forward, _move_backward)
