"""A stack of like layers: one subtree of parameters each, or stacked parameters and a scan."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.dropout import fold

Array = jax.Array


def run_layers(
    layer: type[nn.Module],
    config,
    dtype: jnp.dtype,
    x: Array,
    dropout_keys: Array | None,
    *everywhere: Any,
    remat: bool,
    scan_layers: bool,
) -> list[Array]:
    """Runs `config.layers` layers on x; to be called inside the `nn.compact` method that is to own them.

    Args:
      layer: `layer(config, dtype)` is a module `(x, dropout keys [B] or None, *everywhere) -> (x, None)`.
      config: given to each layer.
      dtype: given to each layer.
      x: [B, L, D].
      dropout_keys: keys [B], into which the layer's number is folded; None switches dropout off.
      *everywhere: further inputs, the same for all layers.
      remat: whether each layer's activations are recomputed in the backward pass.
      scan_layers: whether the parameters are `layers`, stacked on a leading axis, which compiles in the time of one
        layer, or `layers_0`, `layers_1`, ...

    Returns:
      x and what each layer makes of it, in order, each [B, L, D]; of a scan what the last one makes, alone.
    """
    if remat:
        layer = nn.remat(layer, prevent_cse=not scan_layers)
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
