"""Recurrent encoders: tanh RNN, GRU (Cho et al. 2014) and LSTM (Hochreiter and Schmidhuber 1997).

Gates, their order and both biases are those of torch.nn.RNN, GRU and LSTM. Parameters are float32; products are in
`dtype`, states and gates at least in float32. A padded position passes the state on, and its encoding is zero.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.dropout import dropout, fold
from endx_jax.models.layout import Layout
from endx_jax.models.stack import rematerialised
from endx_jax.numerics import at_least_float32
from endx_jax.settings import check, check_choice

Array = jax.Array
State = tuple[Array, ...]  # what is carried, each [R, B, W]; the first is the encoding


@dataclasses.dataclass(frozen=True)
class Cell:
    """Elementwise part of a recurrence.

    Attributes:
      gates: G, the number of linear maps of the input and of the last encoding.
      states: the number of arrays in its state.
      step: from (input's part [..., G W], recurrent part [..., G W], state) to the next state.
    """

    gates: int
    states: int
    step: Callable[[Array, Array, State], State]


def _rnn(inputs: Array, recurrent: Array, state: State) -> State:
    del state
    return (jnp.tanh(inputs + recurrent),)


def _gru(inputs: Array, recurrent: Array, state: State) -> State:
    (reset_in, update_in, new_in), (reset, update, new) = jnp.split(inputs, 3, -1), jnp.split(recurrent, 3, -1)
    update = jax.nn.sigmoid(update_in + update)
    new = jnp.tanh(new_in + jax.nn.sigmoid(reset_in + reset) * new)
    return ((1 - update) * new + update * state[0],)


def _lstm(inputs: Array, recurrent: Array, state: State) -> State:
    enter, forget, new, leave = jnp.split(inputs + recurrent, 4, -1)
    memory = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jax.nn.sigmoid(leave) * jnp.tanh(memory), memory


CELLS: Mapping[str, Cell] = {"rnn": Cell(1, 1, _rnn), "gru": Cell(3, 1, _gru), "lstm": Cell(4, 2, _lstm)}


@dataclasses.dataclass(frozen=True)
class RecurrentConfig:
    """Shape of a recurrent encoder.

    Attributes:
      cell: a name in `CELLS`.
      layers: number of layers.
      width: W of the encodings.
      bidirectional: reads in both directions, each W / 2 wide, forward first; else forward only.
      dropout: of each layer's output except the last's, in training.
      positions: None, as any length can be encoded.
    """

    cell: str
    layers: int
    width: int
    bidirectional: bool = True
    dropout: float = 0.0
    positions: int | None = None

    def __post_init__(self):
        check_choice("the cell of a recurrent encoder", self.cell, CELLS)
        odd = self.bidirectional and self.width % 2
        check(not odd, f"a bidirectional encoder has two halves and so an even width, not {self.width}")


class RecurrentEncoder(nn.Module):
    """Layers of one recurrence.

    Attributes:
      config: the shape.
      dtype: of the products.
      remat: see `rematerialised` in models/stack.py.
    """

    config: RecurrentConfig
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    remat: str = "none"

    @nn.compact
    def __call__(self, embedded: Array, layout: Layout, dropout_keys: Array | None = None) -> Array:
        """Encodes token embeddings [..., D], laid out as `layout` says, to encodings [..., W].

        `dropout_keys` [B] switches dropout on.
        """
        layer = rematerialised(RecurrentLayer, self.remat)
        x = embedded.astype(self.dtype)
        for index in range(self.config.layers):
            if index:
                keys = None if dropout_keys is None else fold(dropout_keys, index)
                x = dropout(x, layout.token_keys(keys), self.config.dropout)
            # One module, called for each bucket of rows: it has one set of parameters.
            run = layer(self.config, self.dtype, name=f"layers_{index}")
            x = layout.join([run(rows, mask) for rows, mask, _ in layout.rows(x)])
        return x


class RecurrentLayer(nn.Module):
    """Recurrence over the positions, in one direction or in both.

    New matrices are uniform within 1 / sqrt(width of a direction), as in PyTorch. New biases are 0, except that of
    the LSTM's forget gate, which is 1 (Jozefowicz et al. 2015).
    """

    config: RecurrentConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, mask: Array, initial: Array | None = None) -> Array:
        """Maps [B, L, D] to [B, L, W]; `initial` [B, W] is the encoding before the first position, zero if None."""
        cell, directions = CELLS[self.config.cell], 1 + self.config.bidirectional
        width = self.config.width // directions
        shape = (directions, cell.gates, width)
        kernel = self.param("input_kernel", _uniform, (x.shape[-1], *shape))
        bias = self.param("input_bias", _forgetting if self.config.cell == "lstm" else nn.initializers.zeros, shape)
        recurrent = self.param("recurrent_kernel", _uniform, (*shape[:1], width, *shape[1:]))
        recurrent_bias = self.param("recurrent_bias", nn.initializers.zeros, shape)

        flat = (directions, cell.gates * width)
        inputs = jnp.einsum("bld,drg->lrbg", x, kernel.reshape(-1, *flat).astype(self.dtype))
        inputs = _turn(inputs + bias.reshape(flat)[None, :, None].astype(self.dtype))
        real = _turn(jnp.broadcast_to(mask.T[:, None, :, None], (*inputs.shape[:3], 1)))
        if initial is not None:
            initial = jnp.moveaxis(initial.reshape(-1, directions, width), 0, 1)
        encodings = recurrence(
            cell,
            inputs,
            real,
            recurrent.reshape(directions, width, -1).astype(self.dtype),
            recurrent_bias.reshape(directions, 1, -1),
            initial,
        )
        encodings = _turn(encodings.astype(self.dtype))
        return jnp.moveaxis(encodings, (0, 1), (1, 2)).reshape(*mask.shape, self.config.width)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def recurrence(
    cell: Cell, inputs: Array, real: Array, kernel: Array, bias: Array, initial: Array | None = None
) -> Array:
    """Runs a cell over positions, R recurrences side by side.

    The gradient is written out so that the kernel's gradient is one product over all positions, after the backward
    loop; autodiff would add a product per position, and reduce each over devices.

    Args:
      cell: the recurrence.
      inputs: the inputs' part of the gates, [L, R, B, G W].
      real: bool [L, R, B, 1]; where it is false the state does not change, and the output is zero.
      kernel: [R, W, G W].
      bias: [R, 1, G W].
      initial: [R, B, W], the encoding before the first position; None: zero, like the rest of the state.

    Returns:
      [L, R, B, W], at least float32.
    """
    return _forward(cell, inputs, real, kernel, bias, initial)[0]


def _forward(cell, inputs, real, kernel, bias, initial):
    def step(state, now):
        inputs, real = now
        recurrent = _product("rbw,rwg->rbg", state[0], kernel) + bias
        state_after, output = _masked(cell, inputs, real, recurrent, state)
        return state_after, (output, recurrent, state)

    zero = at_least_float32(jnp.zeros_like(inputs[0, ..., : kernel.shape[1]]))
    first = zero if initial is None else initial.astype(zero.dtype)
    before = (first, *(zero,) * (cell.states - 1))
    _, (outputs, recurrent, states) = jax.lax.scan(step, before, (inputs, real))
    return outputs, (inputs, real, kernel, bias, initial, recurrent, states)


def _backward(cell, saved, gradient):
    inputs, real, kernel, bias, initial, recurrent, states = saved

    def step(state_gradient, now):
        inputs, real, recurrent, state, gradient = now
        _, pull = jax.vjp(lambda i, r, s: _masked(cell, i, real, r, s), inputs, recurrent, state)
        inputs, recurrent, (encoding, *rest) = pull((state_gradient, gradient))
        return (encoding + _product("rbg,rwg->rbw", recurrent, kernel), *rest), (inputs, recurrent)

    zero = tuple(jnp.zeros_like(state[0]) for state in states)
    of_state, (inputs, recurrent) = jax.lax.scan(step, zero, (inputs, real, recurrent, states, gradient), reverse=True)
    of_kernel = _product("lrbw,lrbg->rwg", states[0], recurrent.astype(kernel.dtype))
    of_bias = jnp.sum(recurrent, (0, 2))[:, None]
    of_initial = None if initial is None else of_state[0].astype(initial.dtype)
    return inputs, None, of_kernel.astype(kernel.dtype), of_bias.astype(bias.dtype), of_initial


recurrence.defvjp(_forward, _backward)


def _masked(cell: Cell, inputs: Array, real: Array, recurrent: Array, state: State) -> tuple[State, Array]:
    """Returns the state after a position, and its output."""
    after = cell.step(at_least_float32(inputs), recurrent, state)
    kept = tuple(jnp.where(real, new, old) for new, old in zip(after, state, strict=True))
    return kept, jnp.where(real, after[0], 0)


def _product(subscripts: str, x: Array, kernel: Array) -> Array:
    """Computes a product in the kernel's dtype, accumulated at least in float32."""
    wide = jnp.promote_types(kernel.dtype, jnp.float32)
    return jnp.einsum(subscripts, x.astype(kernel.dtype), kernel, preferred_element_type=wide)


def _turn(x: Array) -> Array:
    """Reverses the positions of the second direction of [L, R, B, ...]; its own inverse."""
    return x if x.shape[1] == 1 else jnp.stack([x[:, 0], x[::-1, 1]], axis=1)


def _uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Draws [..., W] uniformly within 1 / sqrt(W)."""
    bound = 1 / math.sqrt(shape[-1])
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def _forgetting(key: Array, shape: tuple[int, ...]) -> Array:
    """Returns biases [R, 4, W]: zeros, and ones at the forget gate."""
    del key
    return jnp.zeros(shape).at[:, 1].set(1)
