"""Compilation of a run's training step for its memory, while the state is created or restored."""

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Sequence

import jax

from endx_jax.batch import Batch
from endx_jax.errors import EndxError
from endx_jax.experiment.step_memory import StepMemory
from endx_jax.experiment.train_plan import TrainPlan
from endx_jax.parallel.agreement import check_equal
from endx_jax.parallel.console import say, working
from endx_jax.parallel.memory import gigabytes, trim
from endx_jax.parallel.sharding import put
from endx_jax.training.checkpoints import Checkpoints
from endx_jax.training.compilation import CompiledStep, compile_ahead, shape_of
from endx_jax.training.step import Stacked, Step, TrainState


def compile_and_restore(plan: TrainPlan, checkpoints: Checkpoints | None = None) -> tuple[TrainPlan, TrainState, Step]:
    """Compiles the step, and creates or restores the state.

    If settings leave a choice of chunks and rematerialisation, the step is compiled until one fits into memory: see
    `step_memory.first_that_fits`.

    Args:
      plan: plan of the run.
      checkpoints: checkpoints to resume from; None to start from the initial parameters.

    Returns:
      (plan, state, step): the plan with the choice of the compiled step, the state, and the step.

    Raises:
      EndxError: the step needs more memory than is free.
    """
    model, memory = plan.model, plan.memory
    if not plan.is_asked:
        _check_fits(plan, plan.expected_peak)
    say(f"memory: expected peak {gigabytes(plan.expected_peak)} of {gigabytes(memory.total)} free")

    start = checkpoints.latest_step if checkpoints else None
    if start is not None:
        say(f"resuming from the checkpoint of step {start} of {plan.steps}")

    def load() -> TrainState:
        if checkpoints and start is not None:
            state = checkpoints.restore(start, plan.state)
            return dataclasses.replace(state, params=model.with_base(state.params, plan.mesh))
        params = put(model.initial_params(), plan.shardings.params)
        return jax.jit(plan.create, out_shardings=plan.shardings)(params)

    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # parameters are read while the step is compiled
        compiling = thread.submit(_compile_what_fits, plan) if start != plan.steps else None
        state = load()
        plan, step = compiling.result() if compiling else (plan, CompiledStep({}, plan.train_step))
    trim()
    check_equal(lambda: {"choice of chunks": str(plan.choice)})
    _check_fits(plan, memory.peak(step.bytes()))
    return plan, state, step


def _compile_what_fits(plan: TrainPlan) -> tuple[TrainPlan, CompiledStep]:
    """Compiles the step for the first choice of the plan that fits into memory, or for the last one."""
    steps: dict[StepMemory, CompiledStep] = {}
    needed: list[str] = []

    def compiled(tried: TrainPlan) -> int:
        if needed or tried.is_asked:
            needs = needed[-1] if needed else f"should need {gigabytes(tried.expected_peak)}"
            free = gigabytes(tried.memory.total)
            say(f"memory: the step {needs} of {free}; compiling it with {tried.choice}")
        step = steps[tried.choice] = _compile(tried, tried.calls_to_ask())
        needed.append(f"needs {gigabytes(tried.memory.peak(step.bytes()))}")
        return step.bytes()

    fitting = plan.fitted(compiled)
    step = steps[fitting.choice]
    others = [call for call in fitting.calls_of(fitting.stream.profiles()) if shape_of(call) not in step.programs]
    if others and not step.refused:
        programs = {**step.programs, **_compile(fitting, others).programs}
        step = dataclasses.replace(step, programs=programs)
    return fitting, step


def _compile(plan: TrainPlan, calls: Sequence[Batch | Stacked]) -> CompiledStep:
    started = time.perf_counter()
    programs = f"{len(calls)} program{'s' if len(calls) > 1 else ''}"
    cached = " (cached for later runs)" if plan.settings.train.compilation_cache else ""
    progress = working(f"compiling {programs} for the training step{cached}") if calls else contextlib.nullcontext()
    with progress:
        step = compile_ahead(plan.train_step, plan.state, calls, plan.mesh)
    if calls:
        say(f"programs ready after {time.perf_counter() - started:.0f} s")
    return step


def _check_fits(plan: TrainPlan, peak: int) -> None:
    """Raises EndxError if the step does not fit into memory, before the system kills the process."""
    memory = plan.memory
    if peak > memory.total:
        rows = plan.rows_at_once
        smaller = f"train.tower_chunk below {rows}, " if rows > 1 else ""
        raise EndxError(
            f"a step needs {gigabytes(peak)} of memory and {gigabytes(memory.total)} are free: end other programs, or "
            f"set {smaller}a smaller data.answer_length or a smaller model.pretrained"
        )
