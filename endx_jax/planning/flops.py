"""FLOP of a training step, counted in its traced program."""

import math

from jax.extend.core import jaxprs_in_params


def traced_flops(jaxpr) -> int:
    """Counts the FLOP of matrix products in a traced function on all devices: a multiplication and an addition are two.

    Other operations are negligible. Recomputation is included; a loop counts as often as it runs (once if its length
    depends on data), a conditional as its most expensive branch, and a kernel as the FLOP that it declares.

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
    if name == "pallas_call" and params["cost_estimate"]:
        return params["cost_estimate"].flops
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
