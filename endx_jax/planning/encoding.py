"""Encoding of texts by the model of a run: the program of `endx encode`, compiled for a topology."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.batch import Tokens
from endx_jax.experiment.config import Settings
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.text_batches import Shapes
from endx_jax.parallel.sharding import batch_sharding
from endx_jax.planning.chips import chip_of
from endx_jax.planning.compiled import Compiled, compile_traced, traced_flops
from endx_jax.planning.runs import RunPairs, plan_run
from endx_jax.settings import require

LENGTHS, BATCH_SIZE = (64, 512), 64  # of texts in tokens, and `--batch-size` of `endx encode`
SIDE = "answer"


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Encoding of a batch of `texts` texts, each of `length` tokens.

    `model_flops` are the model's FLOP on one device, and `compiled` is the program.
    """

    length: int
    texts: int
    model_flops: int
    compiled: Compiled


def plan_encoding(settings: Settings, devices: Sequence[jax.Device]) -> list[Encoding]:
    """Compiles the encoding of texts of each of `LENGTHS` by the answer tower of a run, in batches of equal tokens.

    Raises:
      EndxError: training or the compiler would refuse the settings, or a batch does not fit in the memory.
    """
    run = plan_run(settings, RunPairs(None), chip_of(devices[0].device_kind), devices=devices)
    mesh, model, longest = run.mesh, run.model.dual_encoder, max(LENGTHS)
    encoder, shapes = TextEncoder(model, {}, mesh), Shapes.of(mesh, longest, BATCH_SIZE)

    def place(tree: Any, sharding: NamedSharding | None) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    params = {"shared": model.tower_params(run.model.abstract_params["dual_encoder"], SIDE)}
    params = place(params, NamedSharding(mesh, PartitionSpec()))
    planned = []
    for length in LENGTHS:
        shape = (shapes.rows(length, BATCH_SIZE * longest), length)
        tokens = jax.eval_shape(lambda ids: Tokens(ids, ids == 0), jax.ShapeDtypeStruct(shape, jnp.int32))
        tokens = place(tokens, batch_sharding(mesh))
        traced = jax.make_jaxpr(lambda params, tokens: model.encode(params, SIDE, tokens))
        flops = traced_flops(traced(*place((params, tokens), None))) // mesh.size
        compiled = compile_traced(encoder._encode.trace(params, SIDE, tokens), (params, tokens))
        require(not compiled.room, f"{shape[0]:,} texts of {length} tokens do not fit in the memory of {devices[0]}")
        planned.append(Encoding(length, shape[0], flops, compiled))
    return planned
