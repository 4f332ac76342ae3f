"""Floating-point operations of a step: of the traced program, and of the model alone."""

import math
from collections.abc import Mapping, Sequence

from endx_jax.models.bert import BertConfig
from endx_jax.models.t5 import T5Config
from endx_jax.planning.operations import Operation, Program, walk


def program_flops(program: Program, axes: Mapping[str, int]) -> int:
    """Of the products that one device computes in a step, what is computed again included: two a multiplication.

    Everything else is little beside them. Loops count as often as they run.

    Args:
      program: its values are split.
      axes: sizes of the mesh's axes, of those longer than one.
    """
    return sum(times * _flops(operation, axes) for operation, times in walk(program))


def _flops(operation: Operation, axes: Mapping[str, int]) -> int:
    if operation.name == "conv_general_dilated":
        kernel, result = operation.inputs[1], operation.outputs[0]
        out = operation.params["dimension_numbers"].rhs_spec[0]
        return 2 * math.prod(result.shape) * math.prod(kernel.shape) // kernel.shape[out]
    if operation.name != "dot_general":
        return 0
    left, right = operation.inputs
    (contracted, other), _ = operation.params["dimension_numbers"]
    (result,) = operation.outputs
    products = math.prod(result.shape) * math.prod(left.shape[d] for d in contracted)
    split = {name for names in result.split for name in names}
    for a, b in zip(contracted, other, strict=True):
        # What only a parameter is split by is gathered first.
        split |= set(left.split[a]) & set(right.split[b])
        split |= {name for value, d in ((left, a), (right, b)) if not value.is_parameter for name in value.split[d]}
    return 2 * products // math.prod(axes[name] for name in split)


def model_flops(
    config: BertConfig | T5Config, projection: int, pairs: int, lengths: Sequence[int], embedding: int = 0
) -> float:
    """Of the matrix products of a step of an in-batch softmax, whatever is computed again (PaLM, appendix B).

    Args:
      config: of both towers' encoder.
      projection: its width; 0: none.
      pairs: B.
      lengths: of questions and answers, in tokens.
      embedding: width E; 0: the projection's, or the encoder's.

    Returns:
      Three times those of the forward pass.
    """
    gated = isinstance(config, T5Config)
    inner = config.heads * config.head_width if isinstance(config, T5Config) else config.width
    weights = 4 * config.width * inner + (3 if gated else 2) * config.width * config.mlp_width
    forward = 0.0
    for length in lengths:
        a_layer = 2 * length * weights + 4 * length**2 * inner
        forward += pairs * (config.layers * a_layer + 2 * config.width * projection)
    return 3 * (forward + 2 * pairs**2 * (embedding or projection or config.width))
