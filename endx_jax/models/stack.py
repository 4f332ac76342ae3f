"""Stack of equal layers, unrolled or as a scan; their parameters are `layers_0`, `layers_1`, ... either way."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.dropout import fold
from endx_jax.models.sharding_hints import keep_rows, layers_are_gathered, platform

Array = jax.Array

# The depth from which on layers are scanned: a scan compiles in the time of one layer, and unrolled layers compile for
# minutes on accelerators. CPUs compile faster, and copying the parameters costs more there.
SCANNED_FROM, CPU_SCANNED_FROM = 6, 13


def _all_but_what_moves(primitive, *_, **__) -> bool:
    """Saves computed values, but not values that were only moved, such as gathered matrices."""
    return primitive.name != "sharding_constraint"


# Rematerialisation policies by name: values of a layer, besides its input, that are saved for the backward pass.
REMATS: Mapping[str, Callable[..., Any]] = {
    "none": _all_but_what_moves,
    "all_dots": jax.checkpoint_policies.dots_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def run_layers(
    owner: nn.Module,
    layer: type[nn.Module],
    x: Array,
    dropout_keys: Array | None,
    *everywhere: Any,
    every: bool = False,
) -> list[Array]:
    """Runs the layers of an encoder on x; called inside its `nn.compact` method.

    Args:
      owner: the encoder; its `config` and `dtype` are given to each layer, its `remat` to `rematerialised`. With its
        `scan_layers` the layers are one scan over their parameters, which are stacked for it; None chooses by depth
        and platform.
      layer: `layer(config, dtype)` is a module `(x, dropout keys [B] or None, *everywhere) -> x`.
      x: [B, L, D].
      dropout_keys: keys [B], into which the layer's number is folded; None switches dropout off.
      *everywhere: further inputs of every layer.
      every: returns all outputs.

    Returns:
      x and the output of each layer in order, each [B, L, D]; without `every` the output of the last layer only.
    """
    config, dtype, scan = owner.config, owner.dtype, owner.scan_layers
    if scan is None:
        scan = config.layers >= (CPU_SCANNED_FROM if platform() == "cpu" else SCANNED_FROM)
    scan = scan and not owner.is_initializing()
    layer = rematerialised(layer, owner.remat, prevent_cse=not scan)
    names = [f"layers_{n}" for n in range(config.layers)]
    x = keep_rows(x)
    if not scan:
        outputs = [x]
        for n, name in enumerate(names):
            keys = None if dropout_keys is None else fold(dropout_keys, n)
            outputs.append(layer(config, dtype, name=name)(outputs[-1], keys, *everywhere))
        return outputs if every else outputs[-1:]

    def run(x: Array, inputs: tuple) -> tuple[Array, Array | None]:
        params, keys = inputs
        module = layer(config, dtype, parent=None, name="layers")
        x = cast(Array, module.apply({"params": params}, x, keys, *everywhere))
        return x, x if every else None

    def stack(*leaves: Array) -> Array:
        # Matrices are cast before, as the layer would cast them, so that the stack of them is smaller.
        return jnp.stack([leaf.astype(dtype) if leaf.ndim > 1 else leaf for leaf in leaves])

    params = owner.variables["params"]
    stacked = jax.tree.map(stack, *(params[name] for name in names))
    keys = None if dropout_keys is None else jax.vmap(fold, (None, 0))(dropout_keys, jnp.arange(config.layers))
    last, results = jax.lax.scan(run, x, (stacked, keys))
    return [last] if results is None else [x, *results]


def rematerialised(layer: type[nn.Module], remat: str, *, prevent_cse: bool = True) -> type[nn.Module]:
    """Returns the layer with the rematerialisation policy `remat`.

    Args:
      layer: module class of the layer.
      remat: saved values: `none` saves all; `all_dots` the results of matrix products; `dots` those of products with
        weights, so that attention is recomputed; `full` only the layer's input.
      prevent_cse: as in `jax.checkpoint`; not needed in a scan.
    """
    if remat == "none" and not layers_are_gathered():
        return layer
    return nn.remat(layer, policy=REMATS[remat], prevent_cse=prevent_cse)
