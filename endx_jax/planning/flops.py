"""FLOP of a training step, counted in its traced program or computed from the model's config."""

import math
from collections.abc import Sequence

from jax.extend.core import jaxprs_in_params

from endx_jax.models.transformer import TransformerConfig


def traced_flops(jaxpr) -> int:
    """Counts the FLOP of matrix products in a traced function on all devices: a multiplication and an addition are two.

    Other operations are negligible. Recomputation is included; a loop counts as often as it runs (once if its length
    depends on data), and a conditional as its most expensive branch.

    Args:
      jaxpr: result of `jax.make_jaxpr(...)`, or `.jaxpr` of a `jax.stages.Traced`.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_flops(equation) for equation in jaxpr.eqns)


def _flops(equation) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        left = equation.invars[0].aval.shape
        (contracted, _), _ = params["dimension_numbers"]
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[d] for d in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        out = params["dimension_numbers"].rhs_spec[0]
        return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // kernel[out]
    inner = [traced_flops(jaxpr) for jaxpr in jaxprs_in_params(params)]
    if name == "cond":
        return max(inner)
    times = 1
    if name == "scan":
        times = params["length"]
    elif name == "shard_map":  # shapes within are one device's
        axes = params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]
        times = math.prod(params["mesh"].shape[axis] for axis in axes)
    elif name == "pallas_call":
        times = math.prod(size for size in params["grid_mapping"].grid if isinstance(size, int))
    return times * sum(inner)


def model_flops(
    config: TransformerConfig, projection: int, pairs: int, lengths: Sequence[int], embedding: int = 0
) -> float:
    """Computes the FLOP of matrix products in a step of an in-batch softmax, without recomputation (PaLM, appendix B).

    Args:
      config: config of both towers' encoder.
      projection: its width; 0: none.
      pairs: B.
      lengths: lengths of questions and answers, in tokens.
      embedding: width E; 0: the projection's, or the encoder's.

    Returns:
      Three times those of the forward pass.
    """
    inner = config.heads * config.head
    weights = 4 * config.width * inner + (3 if config.gated else 2) * config.width * config.mlp_width
    forward = 0.0
    for length in lengths:
        a_layer = 2 * length * weights + 4 * length**2 * inner
        forward += pairs * (config.layers * a_layer + 2 * config.width * projection)
    return 3 * (forward + 2 * pairs**2 * (embedding or projection or config.width))
