"""Compiled training step: memory, collectives and time, as reported by the compiler, and FLOP of its traced program."""

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params

from endx_jax.errors import EndxError
from endx_jax.experiment.step_memory import StepMemory
from endx_jax.experiment.train_plan import TrainPlan
from endx_jax.parallel.memory import bytes_held
from endx_jax.planning.chips import USABLE, chip_of
from endx_jax.planning.programs import Collective, collectives
from endx_jax.planning.roofline import roofline
from endx_jax.training.compilation import abstract_batch, program_bytes, used_and_limit

# Autotuning runs kernels on a device, which is missing here. It affects no array's size.
GPU_OPTIONS = {"xla_gpu_autotune_level": 0}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Compiled program of one device, as reported by its compiler.

    Attributes:
      arguments: bytes of the state and the batch.
      temporaries: bytes of intermediate values.
      code: bytes of the program, if it resides in the device's memory.
      peak: bytes of all of them and of results that reuse no argument's buffer.
      room: bytes that are missing if the compiler refused the program; else 0.
      fits: true if the program fits in the memory of a device, by its compiler or its data sheet.
      donated: bytes of arguments whose buffers the results reuse.
      collectives: its collectives.
      estimate: of a TPU, seconds by the compiler's cost analysis, in which the body of a loop counts once; else 0.
      roofline: of a GPU, the least seconds of each kind of kernel: see `planning.roofline`; else empty.
      seconds: compilation time.
      text: the program; empty if it was refused.
    """

    arguments: int
    temporaries: int
    code: int
    peak: int
    room: int
    fits: bool
    donated: int
    collectives: list[Collective]
    estimate: float
    roofline: Mapping[str, float]
    seconds: float
    text: str = dataclasses.field(repr=False)


def compile_step(train_plan: TrainPlan) -> Compiled:
    """Compiles the step of a run for the devices of its mesh: local, virtual or described by a topology."""
    batch = abstract_batch(train_plan.largest_batch, train_plan.mesh)
    return compile_traced(trace_step(train_plan), (train_plan.state, batch))


def trace_step(train_plan: TrainPlan) -> jax.stages.Traced:
    """Traces the step of a run for its largest batch."""
    batch = abstract_batch(train_plan.largest_batch, train_plan.mesh)
    return train_plan.train_step.trace(train_plan.state, batch)


def compile_traced(traced: jax.stages.Traced, arguments: Any) -> Compiled:
    """Compiles a traced function for the devices of its arguments, a tree of shapes with shardings."""
    device = next(iter(jax.tree.leaves(arguments)[0].sharding.device_set))
    chip = chip_of(device.device_kind)
    start = time.perf_counter()
    try:
        program = traced.lower().compile(GPU_OPTIONS if device.platform == "gpu" else None)
    except jax.errors.JaxRuntimeError as refused:
        try:
            peak, limit = used_and_limit(refused)
        except jax.errors.JaxRuntimeError:
            raise EndxError(f"the compiler of {device.device_kind} refuses the program: {refused}") from None
        held, seconds = bytes_held(arguments), time.perf_counter() - start
        return Compiled(held, peak - held, 0, peak, peak - limit, False, 0, [], 0.0, {}, seconds, "")
    seconds = time.perf_counter() - start
    memory, text = program.memory_analysis(), program.as_text()
    on_tpu = device.platform == "tpu"
    code = memory.generated_code_size_in_bytes if on_tpu else 0
    peak = program_bytes(program) + code
    return Compiled(
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=code,
        peak=peak,
        room=0,
        fits=not chip or chip.platform == "tpu" or peak <= USABLE * chip.memory,
        donated=memory.alias_size_in_bytes,
        collectives=collectives(text),
        estimate=program.cost_analysis()["optimal_seconds"] if on_tpu else 0.0,
        roofline=roofline(text, chip) if chip and chip.platform == "gpu" else {},
        seconds=seconds,
        text=text,
    )


def compile_what_fits(train_plan: TrainPlan) -> tuple[TrainPlan, Compiled]:
    """Compiles the step of a run with the chunks and rematerialisation that training would choose.

    Returns:
      The run with the choice, and its compiled step.
    """
    by_choice: dict[StepMemory, Compiled] = {}

    def compiled(tried: TrainPlan) -> int:
        by_choice[tried.choice] = compile_step(tried)
        return by_choice[tried.choice].peak

    fitted = train_plan.fitted(compiled)
    return fitted, by_choice[fitted.choice]


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
