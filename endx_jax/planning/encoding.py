"""Encoding of texts by the model of a run: the program of `endx encode`, compiled for a topology."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.batch import Tokens
from endx_jax.experiment.config import Settings
from endx_jax.inference.encode import TextEncoder
from endx_jax.inference.text_batches import Shapes
from endx_jax.parallel.sharding import batch_sharding
from endx_jax.planning.compiled import Compiled, compile_traced
from endx_jax.planning.flops import traced_flops
from endx_jax.planning.subject import Texts, outline_run

LENGTHS, BATCH_SIZE = (64, 512), 64  # of texts in tokens, and `--batch-size` of `endx encode`
SIDE = "answer"


@dataclasses.dataclass(frozen=True)
class Encoding:
    """Encoding of a batch of texts of equal length.

    Attributes:
      length: length of each text in tokens.
      texts: number of texts in the batch, over all devices.
      model_flops: FLOP of the model on one device.
      compiled: its program.
    """

    length: int
    texts: int
    model_flops: int
    compiled: Compiled


def plan_encoding(
    settings: Settings, devices: Sequence[jax.Device], lengths: Sequence[int] = LENGTHS
) -> list[Encoding]:
    """Compiles the encoding of texts of each length by the answer tower.

    Args:
      settings: settings of a run, whose model is meant.
      devices: devices to compile for.
      lengths: lengths of texts in tokens; a batch has as many tokens as `BATCH_SIZE` texts of the largest.

    Raises:
      EndxError: training or the compiler would refuse the settings.
    """
    outline = outline_run(settings, Texts(None), devices=devices)
    mesh, model = outline.mesh, outline.model.dual_encoder
    encoder, shapes = TextEncoder(model, {}, mesh), Shapes.of(mesh, max(lengths), BATCH_SIZE)
    params = {"shared": model.tower_params(outline.model.abstract_params["dual_encoder"], SIDE)}
    whole, rows = NamedSharding(mesh, PartitionSpec()), batch_sharding(mesh)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), params)
    planned = []
    for length in lengths:
        shape = (shapes.rows(length, BATCH_SIZE * max(lengths)), length)
        tokens = Tokens(*(jax.ShapeDtypeStruct(shape, dtype, sharding=rows) for dtype in (jnp.int32, bool)))
        bare = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params, tokens))
        flops = traced_flops(jax.make_jaxpr(lambda params, tokens: model.encode(params, SIDE, tokens))(*bare))
        compiled = compile_traced(encoder._encode.trace(params, SIDE, tokens), (params, tokens))
        planned.append(Encoding(length, shape[0], flops // mesh.size, compiled))
    return planned
