"""Recurrent encoders: tanh RNN, GRU (Cho et al. 2014) and LSTM (Hochreiter and Schmidhuber 1997).

Gates, their order and both biases are those of torch.nn.RNN, GRU and LSTM. Parameters are float32, matrix products are
in `dtype`, gates and state at least in float32. Padding passes the state on unchanged, and its encoding is zero.
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
from endx_jax.models.products import FLOAT32, dot_general_of
from endx_jax.models.stack import rematerialised
from endx_jax.numerics import at_least_float32
from endx_jax.settings import check_choice, require

Array = jax.Array
State = tuple[Array, ...]  # arrays [R, B, W]; the first one is the encoding


@dataclasses.dataclass(frozen=True)
class Cell:
    """Elementwise part of a recurrence.

    Attributes:
      gates: number of gates G, each with a linear map of the input and of the last encoding.
      states: number of arrays in the state.
      step: function (input part [..., G W], recurrent part [..., G W], state) -> next state.
      product_dtype: data type of the factors of recurrent products; None: that of the kernel.
    """

    gates: int
    states: int
    step: Callable[[Array, Array, State], State]
    product_dtype: str | None = None


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
    """Config of a recurrent encoder.

    Attributes:
      cell: a name in `CELLS`.
      layers: number of layers.
      width: width W of the encodings.
      bidirectional: runs each layer in both directions, each of width W / 2, and concatenates forward and backward.
      dropout: dropout rate of the outputs of all layers except the last.
      positions: None, as there is no length limit.
      product_dtype: data type of the factors of products in a float32 computation: see `models.products`.
    """

    cell: str
    layers: int
    width: int
    bidirectional: bool = True
    dropout: float = 0.0
    positions: int | None = None
    product_dtype: str = FLOAT32

    def __post_init__(self):
        check_choice("the cell of a recurrent encoder", self.cell, CELLS)
        odd = self.bidirectional and self.width % 2
        require(not odd, f"a bidirectional encoder needs an even width, not {self.width}: set model.new_encoder.width")


class RecurrentEncoder(nn.Module):
    """Stack of recurrent layers with matrix products in `dtype`; `remat` is a policy of `stack.rematerialised`."""

    config: RecurrentConfig
    dtype: jnp.dtype = jnp.dtype(jnp.float32)
    remat: str = "none"

    @nn.compact
    def __call__(self, embedded: Array, layout: Layout, dropout_keys: Array | None = None) -> Array:
        """Encodes token embeddings [..., D] in the form of `layout` as [..., W]; `dropout_keys` [B] enable dropout."""
        layer = rematerialised(RecurrentLayer, self.remat)
        x = embedded.astype(self.dtype)
        for index in range(self.config.layers):
            if index:
                x = dropout(x, layout.token_keys(fold(dropout_keys, index)), self.config.dropout)
            # Create one module, so that all buckets of rows share its parameters.
            run = layer(self.config, self.dtype, name=f"layers_{index}")
            x = layout.join([run(rows, mask) for rows, mask, _ in layout.rows(x)])
        return x


class RecurrentLayer(nn.Module):
    """Recurrence over the positions, in one direction or both.

    Matrices are initialised uniformly within 1 / sqrt(width of a direction), as in PyTorch. Biases are 0, so that an
    encoding depends on its text only, except the LSTM's forget gate, which is 1 (Jozefowicz et al. 2015).
    """

    config: RecurrentConfig
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array, mask: Array, initial: Array | None = None) -> Array:
        """Maps [B, L, D] to [B, L, W]; `initial` [B, W] is the initial state, zero if None."""
        cell, directions = CELLS[self.config.cell], 1 + self.config.bidirectional
        width = self.config.width // directions
        shape = (directions, cell.gates, width)
        kernel = self.param("input_kernel", _uniform, (x.shape[-1], *shape))
        bias = self.param("input_bias", _forgetting if self.config.cell == "lstm" else nn.initializers.zeros, shape)
        recurrent = self.param("recurrent_kernel", _uniform, (*shape[:1], width, *shape[1:]))
        recurrent_bias = self.param("recurrent_bias", nn.initializers.zeros, shape)

        flat = (directions, cell.gates * width)
        product = dot_general_of(self.config.product_dtype, self.dtype)
        if product is None:
            inputs = jnp.einsum("bld,drg->lrbg", x, kernel.reshape(-1, *flat).astype(self.dtype))
        else:
            cell = dataclasses.replace(cell, product_dtype=self.config.product_dtype)
            inputs = product(x, kernel.reshape(x.shape[-1], -1)).reshape(*x.shape[:2], *flat).transpose(1, 2, 0, 3)
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
    """Runs a cell over positions, for R recurrences in parallel.

    The custom gradient computes the kernel's gradient as one product over all positions after the backward loop.
    Autodiff would add, and reduce over devices, one product for each position.

    Args:
      cell: recurrent cell.
      inputs: input part of the gates, [L, R, B, G W].
      real: bool [L, R, B, 1], true for tokens; padding keeps the state, and its output is zero.
      kernel: recurrent kernels [R, W, G W].
      bias: recurrent biases [R, 1, G W].
      initial: initial encoding [R, B, W]; None means zero. Other arrays of the state start at zero.

    Returns:
      Encodings [L, R, B, W], at least float32.
    """
    return _forward(cell, inputs, real, kernel, bias, initial)[0]


def _forward(cell, inputs, real, kernel, bias, initial):
    factor = kernel.astype(cell.product_dtype or kernel.dtype)

    def step(state, now):
        inputs, real = now
        recurrent = _product("rbw,rwg->rbg", state[0], factor) + bias
        state_after, output = _masked(cell, inputs, real, recurrent, state)
        return state_after, (output, recurrent, state)

    zero = at_least_float32(jnp.zeros_like(inputs[0, ..., : kernel.shape[1]]))
    first = zero if initial is None else initial.astype(zero.dtype)
    before = (first, *(zero,) * (cell.states - 1))
    _, (outputs, recurrent, states) = jax.lax.scan(step, before, (inputs, real))
    return outputs, (inputs, real, kernel, bias, initial, recurrent, states)


def _backward(cell, saved, gradient):
    inputs, real, kernel, bias, initial, recurrent, states = saved
    factor = kernel.astype(cell.product_dtype or kernel.dtype)

    def step(state_gradient, now):
        inputs, real, recurrent, state, gradient = now
        _, pull = jax.vjp(lambda i, r, s: _masked(cell, i, real, r, s), inputs, recurrent, state)
        inputs, recurrent, (encoding, *rest) = pull((state_gradient, gradient))
        return (encoding + _product("rbg,rwg->rbw", recurrent, factor), *rest), (inputs, recurrent)

    zero = tuple(jnp.zeros_like(state[0]) for state in states)
    of_state, (inputs, recurrent) = jax.lax.scan(step, zero, (inputs, real, recurrent, states, gradient), reverse=True)
    of_kernel = _product("lrbw,lrbg->rwg", states[0], recurrent.astype(factor.dtype))
    of_bias = jnp.sum(recurrent, (0, 2))[:, None]
    of_initial = None if initial is None else of_state[0].astype(initial.dtype)
    return inputs, None, of_kernel.astype(kernel.dtype), of_bias.astype(bias.dtype), of_initial


recurrence.defvjp(_forward, _backward)


def _masked(cell: Cell, inputs: Array, real: Array, recurrent: Array, state: State) -> tuple[State, Array]:
    """Returns the state after a position and the position's output."""
    after = cell.step(at_least_float32(inputs), recurrent, state)
    new_state = tuple(jnp.where(real, new, old) for new, old in zip(after, state, strict=True))
    return new_state, jnp.where(real, after[0], 0)


def _product(subscripts: str, x: Array, kernel: Array) -> Array:
    """Computes a product in the kernel's dtype with accumulation at least in float32."""
    wide = jnp.promote_types(kernel.dtype, jnp.float32)
    return jnp.einsum(subscripts, x.astype(kernel.dtype), kernel, preferred_element_type=wide)


def _turn(x: Array) -> Array:
    """Reverses the positions of the second direction of [L, R, B, ...]; its own inverse."""
    return x if x.shape[1] == 1 else jnp.stack([x[:, 0], x[::-1, 1]], axis=1)


def _uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Initialises [..., W] uniformly within 1 / sqrt(W)."""
    bound = 1 / math.sqrt(shape[-1])
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def _forgetting(key: Array, shape: tuple[int, ...]) -> Array:
    """Initialises the LSTM's biases [R, 4, W]: ones for the forget gate, else zeros."""
    del key
    return jnp.zeros(shape).at[:, 1].set(1)
