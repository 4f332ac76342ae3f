"""Stack of equal layers with separate parameters, or with stacked parameters and a scan."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.dropout import fold
from endx_jax.models.sharding_hints import keep_rows, layers_are_gathered

Array = jax.Array


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
    layer: type[nn.Module],
    config,
    dtype: jnp.dtype,
    x: Array,
    dropout_keys: Array | None,
    *everywhere: Any,
    remat: str,
    scan_layers: bool,
) -> list[Array]:
    """Runs `config.layers` layers on x; must be called in an `nn.compact` method, whose module owns the layers.

    Args:
      layer: module class; `layer(config, dtype)` maps (x, dropout keys [B] or None, *everywhere) to (x, None).
      config: config of each layer.
      dtype: dtype of each layer.
      x: input [B, L, D].
      dropout_keys: PRNG keys [B], into which the layer's number is folded; None disables dropout.
      *everywhere: further inputs, the same for all layers.
      remat: rematerialisation policy, see `rematerialised`.
      scan_layers: stacks the parameters as `layers` with a leading layer axis, which compiles in the time of one layer;
        otherwise they are `layers_0`, `layers_1`, ...

    Returns:
      The input and the output of each layer, each [B, L, D]; with `scan_layers`, the last output only.
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
      layer: module class of the layer.
      remat: saved values: `none` saves all; `all_dots` the results of matrix products; `dots` those of products with
        weights, so that attention is recomputed; `full` only the layer's input.
      prevent_cse: as in `jax.checkpoint`; not needed in a scan.
    """
    if remat == "none" and not layers_are_gathered():
        return layer
    return nn.remat(layer, policy=REMATS[remat], prevent_cse=prevent_cse)
