"""Stack of equal layers, with separate parameters or with stacked parameters and a scan."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.dropout import fold
from endx_jax.models.sharding_hints import keep_rows, layers_are_gathered

Array = jax.Array


def _all_but_what_moves(primitive, *_, **__) -> bool:
    """Rematerialisation policy that saves computed values, but not moved ones such as gathered matrices."""
    return primitive.name != "sharding_constraint"


# By name, what a layer keeps for the backward pass beside its input; all else is computed there again.
REMATS: Mapping[str, Callable[..., Any]] = {
    "none": _all_but_what_moves,
    "all_dots": jax.checkpoint_policies.dots_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def run_layers(
    layer: type[nn.Module],
    config,
    dtype: jnp.dtype,
    x: Array,
    dropout_keys: Array | None,
    *everywhere: Any,
    remat: str,
    scan_layers: bool,
) -> list[Array]:
    """Runs `config.layers` layers on x; called inside the `nn.compact` method of the module that owns them.

    Args:
      layer: `layer(config, dtype)` is a module `(x, dropout keys [B] or None, *everywhere) -> (x, None)`.
      config: given to each layer.
      dtype: given to each layer.
      x: [B, L, D].
      dropout_keys: keys [B], into which the layer's number is folded; None switches dropout off.
      *everywhere: further inputs of every layer.
      remat: see `rematerialised`.
      scan_layers: whether the parameters are `layers`, stacked on a leading axis, which compiles in the time of one
        layer, or `layers_0`, `layers_1`, ...

    Returns:
      x and the output of each layer in order, each [B, L, D]; for a scan the output of the last layer only.
    """
    layer = rematerialised(layer, remat, prevent_cse=not scan_layers)
    x = keep_rows(x)
    if not scan_layers:
        outputs = [x]
        for index in range(config.layers):
            keys = None if dropout_keys is None else fold(dropout_keys, index)
            outputs.append(layer(config, dtype, name=f"layers_{index}")(outputs[-1], keys, *everywhere)[0])
        return outputs
    keys = None if dropout_keys is None else jax.vmap(fold, (None, 0))(dropout_keys, jnp.arange(config.layers))
    stack = nn.scan(
        layer,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=(0, *(nn.broadcast for _ in everywhere)),
        length=config.layers,
    )
    return [stack(config, dtype, name="layers")(x, keys, *everywhere)[0]]


def rematerialised(layer: type[nn.Module], remat: str, *, prevent_cse: bool = True) -> type[nn.Module]:
    """Returns the layer with the rematerialisation policy `remat`.

    Args:
      layer: a module.
      remat: `none` keeps all; `all_dots` the results of matrix products; `dots` those of products with weights, so that
        attention is recomputed; `full` only the layer's input.
      prevent_cse: as in `jax.checkpoint`; not needed in a scan.
    """
    if remat == "none" and not layers_are_gathered():
        return layer
    return nn.remat(layer, policy=REMATS[remat], prevent_cse=prevent_cse)
