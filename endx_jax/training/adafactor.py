"""Adafactor (Shazeer & Stern 2018) on parameter trees whose layers may be stacked for a scan.

Adafactor factors second moments by matrix, and clips and scales by the root mean square of an array. optax would treat
a stack of layers as one array; here each layer of a stack is updated separately.
"""

import jax
import jax.numpy as jnp
import optax

from endx_jax.parallel.sharding import is_stacked

# The settings of T5X's retrieval runs (google-research/t5x_retrieval), and so of Dong et al. 2022.
DECAY_RATE = 0.8  # second moments decay by 1 - t^-0.8 at step t = 1, 2, ...
SQUARED_GRADIENT_EPSILON = 1e-30
MIN_FACTORED_WIDTH = 128  # matrices with a narrower side keep the second moment of each entry
CLIPPING_THRESHOLD = 1.0  # largest root mean square of an update, before it is scaled
MIN_PARAMETER_SCALE = 1e-3


def scale_by_adafactor() -> optax.GradientTransformation:
    """Scales gradients as Adafactor does, without the learning rate and the sign.

    An update is the gradient divided by the root of its factored second moment, clipped by its root mean square and
    multiplied by that of its parameter. Followed by `optax.scale_by_learning_rate` it is `optax.adafactor`, applied to
    each layer of a stack. There is no momentum and no weight decay.

    Returns:
      A transformation that needs the parameters at each update. Its state is an `optax.FactoredState`, whose arrays
      have a leading layer axis where their parameter has one: `v_row` and `v_col` for matrices with both sides at least
      128 wide, `v` for other parameters, and placeholders of shape (1,) otherwise.
    """
    moments = optax.scale_by_factored_rms(
        decay_rate=DECAY_RATE, min_dim_size_to_factor=MIN_FACTORED_WIDTH, epsilon=SQUARED_GRADIENT_EPSILON
    )
    scales = optax.chain(
        optax.clip_by_block_rms(CLIPPING_THRESHOLD), optax.scale_by_param_block_rms(MIN_PARAMETER_SCALE)
    )

    def init(params):
        def init_one(param):
            _, v_row, v_col, v = moments.init(param)
            return v_row, v_col, v

        return optax.FactoredState(jnp.zeros((), jnp.int32), *_map_layers(init_one, params))

    def update(gradients, state, params):
        def update_one(gradient, v_row, v_col, v, param):
            one = optax.FactoredState(state.count, v_row, v_col, v)
            change, (_, v_row, v_col, v) = moments.update(gradient, one, param)
            change, _ = scales.update(change, scales.init(param), param)
            return change, v_row, v_col, v

        changes, *moved = _map_layers(update_one, gradients, state.v_row, state.v_col, state.v, params)
        return changes, optax.FactoredState(optax.safe_increment(state.count), *moved)

    return optax.GradientTransformation(init, update)


def _map_layers(function, tree, *others):
    """Maps a function with several results over leaves, or the layers of stacked leaves; returns a tree per result."""

    def at(path, *leaves):
        stacked = is_stacked(jax.tree_util.keystr(path, simple=True, separator="/"))
        return (jax.vmap(function) if stacked else function)(*leaves)

    results = jax.tree_util.tree_map_with_path(at, tree, *others)
    return jax.tree.transpose(jax.tree.structure(tree), None, results)
