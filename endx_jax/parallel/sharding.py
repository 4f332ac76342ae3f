"""What is split over the mesh, in one table.

Batches are split over `data` and `fsdp`. A parameter is split by the first rule whose pattern its path matches; the
optimizer's arrays carry their parameter's path at the end of their own and so follow the same rule.
"""

import math
import re

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from endx_jax.errors import EndxError
from endx_jax.numerics import round_up

BATCH_AXES = ("data", "fsdp")

# Path pattern -> the mesh axis of each dimension. Columns of what widens and rows of what narrows go over `tensor`,
# so that a layer needs one reduction a sublayer; the other dimension goes over `fsdp`.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"token_embedder/embedding$", ("tensor", "fsdp")),
    (r"(position|type)_embedding$", (None, "fsdp")),
    (r"relative_position_bias$", (None, "tensor")),
    (r"attention/(query|key|value)/kernel$", ("fsdp", "tensor")),
    (r"attention/(query|key|value)/bias$", ("tensor",)),
    (r"attention/output/kernel$", ("tensor", "fsdp")),
    (r"(mlp_up|mlp_gate)/kernel$", ("fsdp", "tensor")),
    (r"mlp_up/bias$", ("tensor",)),
    (r"mlp_down/kernel$", ("tensor", "fsdp")),
    (r"input_kernel$", ("fsdp", None, None, None)),
    # Needed at every position: a part of it would have to be gathered as often.
    (r"recurrent_kernel$", (None, None, None, None)),
    (r"(input|recurrent)_bias$", (None, None, None)),
    (r"pooling/(hidden|hop)_kernel$", ("fsdp", None)),
    (r"projection/kernel$", ("fsdp", None)),
    (r"head/\w+/(hidden|output)/kernel$", ("fsdp", None)),
    (r"head/\w+/filters/kernel$", (None, None, None)),
    (r"head/\w+/(hidden|filters)/bias$", (None,)),
    (r"pair/pooler/kernel$", ("fsdp", None)),
    (r"pair/classifier/kernel$", (None, None)),
    (r"pair/(pooler|classifier)/bias$", (None,)),
    (r"(norm/(scale|bias)|(output|mlp_down)/bias)$", (None,)),
    (r"token_weights/weight$", (None,)),
    # A decoder's scores of words are a part of the vocabulary each, as its token table's rows are.
    (r"vocabulary_kernel$", ("tensor", "fsdp")),
    (r"vocabulary_bias$", ("tensor",)),
    (r"(deviation/\w+|decoder/\w+/(initial|reminder|hidden))/kernel$", ("fsdp", None)),
    (r"(deviation/\w+|decoder/\w+/(initial|reminder|hidden))/bias$", (None,)),
    (r"log_temperature$", ()),
    (r"(^|/)(step|count)$", ()),
)


def partition_spec(path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """The partition of one array.

    An axis that does not divide its dimension is left out, so small vocabularies and odd widths stay whole. Layers that
    are stacked for a scan have one more leading dimension than the rule names, which is never split. Arrays of another
    rank than their parameter's stay whole: Adafactor's row and column moments, and stand-ins for those it does without.

    Raises:
      EndxError: when no rule matches.
    """
    for pattern, axes in RULES:
        if re.search(pattern, path):
            axes = (None, *axes) if is_stacked(path) else axes
            if len(axes) != len(shape):
                return PartitionSpec()
            fits = [a if a and n % mesh.shape[a] == 0 else None for a, n in zip(axes, shape, strict=True)]
            return PartitionSpec(*fits)
    raise EndxError(f"no sharding rule matches the parameter {path} {shape}; add one to parallel/sharding.py")


def is_stacked(path: str) -> bool:
    """Whether an array holds all layers of an encoder on its leading axis, as `models/stack.py` has them for a scan."""
    return "layers" in path.split("/")


def state_shardings(state, mesh: Mesh):
    """Shardings for a tree of arrays or shapes, by their paths."""

    def place(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return NamedSharding(mesh, partition_spec(name, leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(place, state)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Splits the first axis, the batch, over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts a batch is split."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def rounded_up(batch_size: int, mesh: Mesh) -> int:
    """The smallest batch of at least `batch_size` rows that divides over the mesh."""
    return round_up(batch_size, batch_shards(mesh))


def local_rows(mesh: Mesh, batch_size: int) -> slice:
    """The rows of a global batch that this process's devices hold.

    Raises:
      EndxError: when the batch does not divide over the mesh.
    """
    shards = batch_shards(mesh)
    if batch_size % shards:
        raise EndxError(
            f"a batch of {batch_size} does not divide over {shards} devices (mesh axes {' x '.join(BATCH_AXES)}); "
            f"make it a multiple of {shards}"
        )
    places = batch_sharding(mesh).devices_indices_map((batch_size,))
    bounds = [places[device][0].indices(batch_size)[:2] for device in mesh.local_devices]
    return slice(min(start for start, _ in bounds), max(stop for _, stop in bounds))


def to_global(tree, mesh: Mesh, batch_size: int):
    """Turns each process's rows (NumPy, first axis) into arrays of the global batch, split over the mesh."""
    sharding = batch_sharding(mesh)

    def assemble(rows):
        rows = np.asarray(rows)
        return jax.make_array_from_process_local_data(sharding, rows, (batch_size, *rows.shape[1:]))

    return jax.tree.map(assemble, tree)


def place(tree, shardings):
    """Puts host arrays that every process holds whole where `shardings` says; each process uploads only its part."""

    def put(array, sharding):
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])

    return jax.tree.map(put, tree, shardings)
