"""Sharding rules: one table with the partition of each parameter over the mesh, to which methods add rules.

Batches are split over `data` and `fsdp`. `RULES` has exactly one rule for each parameter, selected by its path. The
path of an array of the optimizer ends with that of its parameter, so the same rule applies to it.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.errors import EndxError
from endx_jax.models.sharding_hints import BATCH_AXES
from endx_jax.parallel.mesh import AXES, check_process
from endx_jax.settings import check_choice


@dataclasses.dataclass(frozen=True)
class Rule:
    """Sharding rule for the parameters whose path matches a pattern.

    Attributes:
      pattern: regular expression for the last names of their paths.
      axes: the mesh axis of each dimension, `fsdp` or `tensor`; None: not split.
      by_layer: true for parameters of a layer that are used only in `model.dtype`: `parallel.gathering` casts and
        gathers them inside their layer.
    """

    pattern: str
    axes: tuple[str | None, ...]
    by_layer: bool = False

    def __post_init__(self):
        for axis in filter(None, self.axes):
            check_choice(f"an axis of the sharding rule {self.pattern}", axis, AXES)


# `tensor` splits the columns of matrices that widen and the rows of those that narrow, so that a sublayer needs one
# reduction; `fsdp` splits the other dimension.
RULES: list[Rule] = [
    Rule(r"token_embedder/embedding", ("tensor", "fsdp")),
    Rule(r"(position|type)_embedding", (None, "fsdp")),
    Rule(r"relative_position_bias", (None, "tensor")),
    Rule(r"attention/(query|key|value)/kernel", ("fsdp", "tensor"), by_layer=True),
    Rule(r"attention/(query|key|value)/bias", ("tensor",)),
    Rule(r"attention/output/kernel", ("tensor", "fsdp"), by_layer=True),
    Rule(r"(mlp_up|mlp_gate)/kernel", ("fsdp", "tensor"), by_layer=True),
    Rule(r"(mlp_up|mlp_gate)/bias", ("tensor",)),
    Rule(r"mlp_down/kernel", ("tensor", "fsdp"), by_layer=True),
    Rule(r"(attention/output|mlp_down|embedding_projection)/bias", (None,)),
    Rule(r"lora_[ab]", (None, None)),
    Rule(r"embedding_projection/kernel", ("fsdp", None)),
    Rule(r"(\w+_)?norm/(scale|bias)", (None,)),
    Rule(r"input_kernel", ("fsdp", None, None, None)),
    # Not split, since it would have to be gathered at every position.
    Rule(r"recurrent_kernel", (None, None, None, None)),
    Rule(r"(input|recurrent)_bias", (None, None, None)),
    Rule(r"pooling/(hidden|hop)_kernel", ("fsdp", None)),
    Rule(r"projection/kernel", ("fsdp", None)),
    Rule(r"projection/bias", (None,)),
    Rule(r"head/\w+/(hidden|output)/kernel", ("fsdp", None)),
    Rule(r"head/\w+/filters/kernel", (None, None, None)),
    Rule(r"head/\w+/(hidden|output|filters)/bias", (None,)),
    Rule(r"token_weights/weight", (None,)),
    Rule(r"log_temperature", ()),
    Rule(r"(step|count)", ()),
]
"""Rules of towers and optimizers, and those of methods that `add_rules` added."""

# Prefix of the paths of Adafactor's moments, before the path of their parameter.
FACTORED = re.compile(r"(^|/)(v|v_row|v_col)/")


def add_rules(rules: Iterable[Rule]) -> None:
    """Adds a method's rules to the table, unless they are in it."""
    RULES.extend(rule for rule in rules if rule not in RULES)
    rule_of.cache_clear()


@functools.cache
def rule_of(path: str) -> Rule:
    """Returns the only rule that matches a path."""
    matches = [rule for rule in RULES if re.search(rf"(^|/)({rule.pattern})$", path)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise EndxError(f"no sharding rule matches the parameter {path}; add one to the METHOD's sharding")
    patterns = " and ".join(rule.pattern for rule in matches)
    raise EndxError(f"the sharding rules {patterns} all match the parameter {path}: remove all but one")


def partition_spec(path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Returns the partition of one array.

    A dimension that is not divisible by its axis is not split. Adafactor's arrays of another rank than their parameter
    (row and column moments, and placeholders) are not split.
    """
    if not shape:
        return PartitionSpec()
    rule = rule_of(path)
    if len(rule.axes) != len(shape):
        if FACTORED.search(path):
            return PartitionSpec()
        found = f"for {len(rule.axes)} dimensions, and the parameter {path} has the shape {shape}"
        raise EndxError(f"the sharding rule {rule.pattern} is {found}; give it one axis per dimension")
    return PartitionSpec(*(a if a and n % mesh.shape[a] == 0 else None for a, n in zip(rule.axes, shape, strict=True)))


def state_shardings(state, mesh: Mesh):
    """Returns the sharding of each leaf of a tree of arrays or shapes, by its path."""
    return map_paths(lambda path, leaf: NamedSharding(mesh, partition_spec(path, leaf.shape, mesh)), state)


def map_paths(function: Callable[[str, Any], Any], params) -> Any:
    """Returns a tree of function(path, leaf), with paths as those of `parameter_paths`."""
    name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
    return jax.tree.map_with_path(lambda path, leaf: function(name(path), leaf), params)


def parameter_paths(params) -> dict[str, Any]:
    """Returns the leaves of a parameter tree by path, such as `dual_encoder/shared/encoder/layers_0/mlp_up/kernel`."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def batch_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Returns the sharding of a batch's arrays, whose `axis` of pairs is split over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, BATCH_AXES))


def batch_shards(mesh: Mesh) -> int:
    """Returns the number of parts into which a batch is split."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Returns the rows of a global batch that are on this process's devices, int [n], ascending.

    The batch size is a multiple of `batch_shards`. The rows are often not consecutive on TPU slices, where the chips of
    a host form a square of the torus.
    """
    shards = batch_shards(mesh)
    if batch_size % shards:
        over = f"{shards} devices (mesh axes {' x '.join(BATCH_AXES)})"
        remedy = f"set train.global_batch_size to a multiple of {shards}"
        raise EndxError(f"a batch of {batch_size} does not divide over {over}: {remedy}")
    places = batch_sharding(mesh).devices_indices_map((batch_size,))
    held = [np.arange(batch_size)[places[device][0]] for device in mesh.local_devices]
    return np.unique(np.concatenate(held))


def to_global(tree, mesh: Mesh, batch_size: int, axis: int = 0):
    """Builds sharded arrays of the global batch from each process's rows along an axis, a tree of NumPy arrays."""
    check_process()
    sharding = batch_sharding(mesh, axis)

    def assemble(rows):
        rows = np.asarray(rows)
        whole = (*rows.shape[:axis], batch_size, *rows.shape[axis + 1 :])
        return jax.make_array_from_process_local_data(sharding, rows, whole)

    return jax.tree.map(assemble, tree)


def put(tree, shardings):
    """Places a tree of arrays on devices; each process uploads its own parts only, one device at a time.

    Args:
      tree: tree of arrays that every process has in full, in memory or in files (`pretrained.stored` reads only the
        parts that are needed), or of arrays on the devices of all processes.
      shardings: tree of shardings with the same structure.
    """
    return jax.tree.map(_put_array, tree, shardings)


def _put_array(array, sharding):
    if isinstance(array, jax.Array):
        if not array.is_fully_addressable:
            return jax.device_put(array, sharding)
        array = np.asarray(array)
    elif not hasattr(array, "shape"):
        array = np.asarray(array)
    devices: dict[str, list] = {}
    parts = sharding.addressable_devices_indices_map(array.shape)
    for device, part in parts.items():
        devices.setdefault(repr(part), []).append(device)
    placed = []
    for alike in devices.values():
        values = array[parts[alike[0]]]
        placed += [jax.device_put(values, device) for device in alike]
    return jax.make_array_from_single_device_arrays(array.shape, sharding, placed)


def fetch_whole(array) -> np.ndarray:
    """Fetches a full array to this host; every process must call this if the array is split over processes."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        from jax.experimental import multihost_utils

        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)
