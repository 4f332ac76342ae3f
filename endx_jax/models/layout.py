"""Layouts of the tokens of B texts during encoding: padded rows, or packed end to end without padding.

What treats every token alone (products with weights, norms, activations) does not care and sees arrays `[..., D]`. What
brings the tokens of a text together (attention, recurrences, pooling) asks the layout for padded rows.
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
from endx_jax.models.packed_attention import BLOCK
from endx_jax.models.sharding_hints import platform
from endx_jax.numerics import round_up

Array = jax.Array


@flax.struct.dataclass
class Padded:
    """Layout with one padded row per text; token arrays are `[B, L, ...]`.

    Attributes:
      mask: bool [B, L], true at real tokens.
      second: int32 [B], where each text's second segment begins; None: they have one.
      ids: int32 [B, L], the tokens; None where nothing asks for them.
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
        """Returns the row of a table for each token, counted from `pad_id` + 1 on over those that are not `pad_id`.

        Those that are, where a text spells the padding token, have its row, as in RoBERTa.
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
        """Padded rows: a list of (token arrays [R, W, ...], mask [R, W], arrays of texts [R, ...])."""
        return [(tokens, self.mask, texts)]

    def join(self, rows: Sequence[Array]) -> Array:
        """Back from padded rows [R, W, ...], listed as `rows` lists them, to a token array."""
        return rows[0]

    def pad(self, tokens: Array) -> Array:
        """Returns a token array as padded rows [B, L, D], in the order of the texts."""
        return tokens


@flax.struct.dataclass
class Packed:
    """Texts end to end, in order of length; token arrays are `[1, T, ...]`, and `rows` cuts buckets of like lengths.

    A text that `packing` has no room for turns into NaN.

    Attributes:
      order: int32 [B], the texts by length.
      lengths: int32 [B], in that order, as all below.
      text: int32 [T], the place of each token's text in that order; any for padding.
      position: int32 [T], of each token in its text.
      to_rows: int32 [P], for each place in the buckets' rows the token that stands there; T for padding.
      to_tokens: int32 [T], and for each token its place; P for padding, and for what its row is too short for.
      shape: (B, L), of the padded form.
      packing: the static side of it.
      second: int32 [B], where each text's second segment begins; None: they have one.
      ids: int32 [T], the tokens; None where nothing asks for them.
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
        """The longest text that there is room for, in tokens."""
        return self.packing.width

    def by_position(self, table: Array) -> Array:
        """Returns table rows by position, as `Padded.by_position`."""
        return table[self.position][None]

    def by_position_after(self, table: Array, pad_id: int) -> Array:
        """Returns table rows by number, as `Padded.by_position_after`."""
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
        """Yields padded rows as `Padded.rows`, one entry per bucket."""
        placed = jax.tree.map(lambda x: _move(x[0], self.to_rows, self.to_tokens), tokens)
        texts = jax.tree.map(lambda x: x[self.order], texts)
        found, row, place = [], 0, 0
        for count, width in self.packing.buckets:
            end_row, end = row + count, place + count * width
            own = jax.tree.map(lambda x: x[place:end].reshape(count, width, *x.shape[1:]), placed)  # noqa: B023
            mask = jnp.arange(width)[None] < self.lengths[row:end_row, None]
            found.append((own, mask, jax.tree.map(lambda x: x[row:end_row], texts)))  # noqa: B023
            row, place = end_row, end
        return found

    def join(self, rows: Sequence[Array]) -> Array:
        """Joins buckets into a token array, as `Padded.join`."""
        places = jnp.concatenate([x.reshape(-1, *x.shape[2:]) for x in rows])
        return _move(places, self.to_tokens, self.to_rows)[None]

    def bounds(self, window: int | None = None) -> tuple[Array, Array]:
        """Returns the first place that each token attends to and the place after the last, int32 [T].

        They are those of its text, or of the part of it at most `window` places away. For padding they are zero.
        """
        ends, place = jnp.cumsum(self.lengths), jnp.arange(self.packing.tokens)
        begin, end = (ends - self.lengths)[self.text], ends[self.text]
        if window is not None:
            begin, end = jnp.maximum(begin, place - window), jnp.minimum(end, place + window + 1)
        real = place < ends[-1]
        return jnp.where(real, begin, 0), jnp.where(real, end, 0)

    def pad(self, tokens: Array) -> Array:
        """Returns padded rows as `Padded.pad`, with zeros where there is no token."""
        count, length = self.shape
        rank = jnp.argsort(self.order)
        own = self.lengths[rank]
        columns = jnp.arange(length)
        ends = jnp.cumsum(self.lengths)
        index = ((ends - self.lengths)[rank][:, None] + columns[None]).reshape(-1)
        real = jnp.arange(self.packing.tokens) < ends[-1]
        place = jnp.where(real, self.order[self.text] * length + self.position, count * length)
        padded = _move(tokens[0], index, place).reshape(count, length, -1)
        fits = (self.lengths <= self.packing.row_widths) & (ends <= self.packing.tokens)
        padded = jnp.where(fits[rank][:, None, None], padded, jnp.nan)
        return jnp.where((columns[None] < own[:, None])[:, :, None], padded, 0)


Layout = Padded | Packed


def lay_out(tokens: Tokens) -> tuple[Array, Layout]:
    """Token ids as an encoder is to be given them, [B, L] or [1, T], and their layout."""
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
    text = jnp.minimum(jnp.searchsorted(ends, token, side="right"), len(lengths) - 1)
    real = token < total
    position = jnp.where(real, token - first[text], 0)

    # Where each text's row begins in the buckets, and how wide it is; and the way back.
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
    """x[index] of [N, ...], zero where the index is N or more.

    Its gradient is a gather too, by `back`, and no scatter: `back` says where each of the N went.
    """
    return x.at[index].get(mode="fill", fill_value=0)


def _move_forward(x, index, back):
    return _move(x, index, back), back


def _move_backward(back, gradient):
    return gradient.at[back].get(mode="fill", fill_value=0), None, None


_move.defvjp(_move_forward, _move_backward)
