"""Stack of layers, unrolled or as a scan; their parameters are `layers_0`, `layers_1`, ... either way."""

import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.models.dropout import fold
from endx_jax.models.sharding_hints import keep_rows, platform

Array = jax.Array

# The depth from which on layers are scanned: a scan compiles in the time of one layer, and unrolled layers compile for
# minutes for TPUs. Other compilers are faster, and a scan costs more there: a CPU copies the parameters, and a GPU also
# fills the arrays of kept activations with zeros and transposes them as a whole.
TPU_SCANNED_FROM, SCANNED_FROM = 6, 13


def _all_but_what_moves(primitive, *_, **__) -> bool:
    """Saves computed values, but not values that were only moved, such as gathered matrices."""
    return primitive.name not in ("sharding_constraint", "all_gather")


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
    shared: bool = False,
) -> list[Array]:
    """Runs the layers of an encoder on x; called inside its `nn.compact` method.

    Layers of different kinds may have different parameters, and some of them adapters. A scan then runs over the
    repetitions of their pattern, and the layers before the first repetition run by themselves.

    Args:
      owner: the encoder; its `config` and `dtype` are given to each layer, its `remat` to `rematerialised`. With its
        `scan_layers` the layers are one scan over their parameters, which are stacked for it; None chooses by depth
        and platform.
      layer: `layer(config, dtype, kind)`, with a kind of `config.kinds`, is a module `(x, dropout keys [B] or None,
        *everywhere) -> x`.
      x: [B, L, D].
      dropout_keys: keys [B], into which the layer's number is folded; None switches dropout off.
      *everywhere: further inputs of every layer.
      every: returns all outputs.
      shared: all layers have the parameters of the first, `layers_0`.

    Returns:
      x and the output of each layer in order, each [B, L, D]; without `every` the output of the last layer only.
    """
    config, dtype, scan = owner.config, owner.dtype, owner.scan_layers
    kinds = config.kinds
    if scan is None:
        scan = len(kinds) >= (TPU_SCANNED_FROM if platform() == "tpu" else SCANNED_FROM)
    scan = scan and not owner.is_initializing()
    own_params = owner.variables.get("params", {})
    layer = rematerialised(layer, owner.remat, prevent_cse=not scan, gathered=_any_is_gathered(own_params))
    start, period = len(kinds), 1
    if scan:
        parameters = [jax.tree.structure(own_params.get(f"layers_{n}")) for n in range(len(kinds) * (not shared))]
        start, period = repetition([*itertools.zip_longest(kinds, parameters)])
    outputs, first = [keep_rows(x)], None
    # Layers that share parameters cast them for themselves, so that their gradients are summed in float32.
    if joined := not (scan or shared or owner.is_initializing()) and dropout_keys is not None and platform() == "gpu":
        own_params = _cast_together(own_params, dtype)
    for n, kind in enumerate(kinds[:start]):
        if joined:
            alone = layer(config, dtype, kind, parent=None, name=f"layers_{n}")
            inputs = outputs[-1], fold(dropout_keys, n), *everywhere
            outputs.append(cast(Array, alone.apply({"params": own_params[f"layers_{n}"]}, *inputs)))
            continue
        module = first if shared and first else layer(config, dtype, kind, name=f"layers_{n}")
        first = first or module
        if dropout_keys is None and platform() == "cpu" and not owner.is_initializing():
            # Equal layers are traced once. Elsewhere attention notes for each trace why it is not fused.
            params = own_params["layers_0" if shared else f"layers_{n}"]
            alike = layer(config, dtype, kind, parent=None, name="layers")
            outputs.append(_apply(alike, params, outputs[-1], *everywhere))
            continue
        outputs.append(module(outputs[-1], fold(dropout_keys, n), *everywhere))
    if start == len(kinds):
        return outputs if every else outputs[-1:]

    def run(x: Array, inputs: tuple) -> tuple[Array, list[Array] | None]:
        params, keys = inputs
        results = []
        for n, kind in enumerate(kinds[start : start + period]):
            module = layer(config, dtype, kind, parent=None, name="layers")
            layer_params = own_params["layers_0"] if shared else params[n]
            x = cast(Array, module.apply({"params": layer_params}, x, None if keys is None else keys[n], *everywhere))
            results.append(x)
        return x, results if every else None

    def stack(path: tuple, *leaves: Array) -> Array:
        # Kernels are cast before stacking, as the layer would cast them, so that the stack is smaller.
        return jnp.stack([leaf.astype(dtype) if _is_kernel(path) else leaf for leaf in leaves])

    repeated = range(start, len(kinds), period)
    stacked, each_keys = None, None
    if not shared:
        names = [[f"layers_{begin + n}" for begin in repeated] for n in range(period)]
        stacked = [jax.tree.map_with_path(stack, *(own_params[name] for name in alike)) for alike in names]
    if dropout_keys is not None:
        each_keys = [jax.vmap(fold, (None, 0))(dropout_keys, jnp.asarray(repeated) + n) for n in range(period)]
    last, results = jax.lax.scan(run, outputs[-1], (stacked, each_keys), length=len(repeated))
    if results is None:
        return [last]
    return [*outputs, *(result[n] for n in range(len(repeated)) for result in results)]


def _is_kernel(path: tuple) -> bool:
    return "kernel" in jax.tree_util.keystr(path)


def _cast_together(params: Mapping, dtype: jnp.dtype) -> Mapping:
    """Casts the kernels of layers to `dtype`, for training on a GPU, by one kernel for all matrices of a size.

    XLA for GPUs does so, here and with their gradients, if all read the same array. So they are multiplied by one, and
    the barrier keeps XLA from finding that out.
    """
    one = jax.lax.optimization_barrier(jnp.ones(2))[0]  # XLA would pass an array of one number as a scalar

    def cast_kernel(path: tuple, leaf: Array) -> Array:
        return (leaf * one).astype(dtype) if _is_kernel(path) and leaf.dtype != dtype else leaf

    return jax.tree.map_with_path(cast_kernel, params)


@functools.partial(jax.jit, static_argnums=0)
def _apply(layer: nn.Module, params: Mapping, x: Array, *everywhere: Any) -> Array:
    """Runs a layer without dropout."""
    return cast(Array, layer.apply({"params": params}, x, None, *everywhere))


def repetition(kinds: Sequence[Hashable]) -> tuple[int, int]:
    """Returns where the pattern of the layers' kinds begins to repeat up to the last layer, and its length.

    Both together are as small as possible, as so many layers are compiled: (0, 1) for equal layers.
    """
    count = len(kinds)
    for compiled in range(1, count + 1):
        for period in range(1, compiled + 1):
            start = compiled - period
            if (count - start) % period == 0 and kinds[start : count - period] == kinds[start + period :]:
                return start, period
    return 0, 1


def _any_is_gathered(params: Mapping) -> bool:
    """Returns true if matrices are gathered from several devices when their layer runs: see `parallel.gathering`."""
    boxes = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, nn.meta.AxisMetadata))
    return any(isinstance(box, nn.meta.AxisMetadata) for box in boxes)


def rematerialised(
    layer: type[nn.Module], remat: str, *, prevent_cse: bool = True, gathered: bool = False
) -> type[nn.Module]:
    """Returns the layer with the rematerialisation policy `remat`.

    Args:
      layer: module class of the layer.
      remat: saved values: `none` saves all; `all_dots` the results of matrix products; `dots` those of products with
        weights, so that attention is recomputed; `full` only the layer's input.
      prevent_cse: as in `jax.checkpoint`; not needed in a scan.
      gathered: the layer gathers its matrices, which are not saved whole.
    """
    if remat == "none" and not gathered:
        return layer
    return nn.remat(layer, policy=REMATS[remat], prevent_cse=prevent_cse)
