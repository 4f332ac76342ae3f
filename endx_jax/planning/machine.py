"""Memory and time of a run on the local machine, from its compiled step."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from endx_jax.experiment.config import Settings
from endx_jax.experiment.train_plan import TrainPlan
from endx_jax.parallel.console import working
from endx_jax.parallel.environment import use_compilation_cache
from endx_jax.parallel.memory import resident
from endx_jax.parallel.sharding import put, to_global
from endx_jax.planning.compiled import compile_what_fits
from endx_jax.planning.runs import RunPairs, plan_run

# Steps to time: so many, and none after so many seconds.
TIMED, ENOUGH = 3, 20.0


@dataclasses.dataclass(frozen=True)
class MeasuredStep:
    """Memory and time of a training step on the local devices.

    Attributes:
      device: kind of the device.
      dtype: dtype of the towers.
      tower_chunk: pairs that a device encodes at a time.
      free: bytes available to the process; on a CPU those of the host.
      process: bytes held by the process beside the step: on a CPU the interpreter, libraries and data.
      step: bytes of state, batch, temporaries and results on all devices that share the memory.
      compiled: true if `step` is the compiled program's; a step that can't fit is only estimated.
      seconds: measured time of a step; None if it does not fit.
      steps: number of steps of the whole run; 0 if it depends on data that can't be read here.
    """

    device: str
    dtype: str
    tower_chunk: int
    free: int
    process: int
    step: int
    compiled: bool
    seconds: float | None = None
    steps: int = 0

    @property
    def peak(self) -> int:
        """Peak bytes in a step: on a CPU of the training process, else of one device."""
        return self.process + self.step

    @property
    def fits(self) -> bool:
        """True if training would start."""
        return self.peak <= self.free


def plan_machine(settings: Settings, texts: RunPairs) -> MeasuredStep:
    """Compiles the largest step of a run for the local devices and times its first steps, if they fit."""
    train_plan = plan_run(settings, texts)
    memory, expected = train_plan.memory, train_plan.expected_peak
    compiled = expected <= memory.total
    process, step = memory.held, expected - memory.held
    if compiled:
        use_compilation_cache(settings.train.compilation_cache)
        train_plan, program = compile_what_fits(train_plan)
        step = memory.devices * program.peak
        if "bytes_limit" not in (jax.local_devices()[0].memory_stats() or {}):
            process = max(process, resident())  # with what the compiler keeps
    machine = MeasuredStep(
        device=jax.local_devices()[0].device_kind,
        dtype=str(jnp.dtype(train_plan.execution.dtype)),
        tower_chunk=train_plan.rows_at_once,
        free=memory.total,
        process=process,
        step=step,
        compiled=compiled,
        steps=train_plan.steps if texts.pairs is not None or settings.train.steps else 0,
    )
    if not (compiled and machine.fits):
        return machine
    with working("timing steps of this machine"):
        return dataclasses.replace(machine, seconds=time_steps(train_plan))


def time_steps(train_plan: TrainPlan) -> float:
    """Times steps on the first batch with random parameters; returns the mean in seconds, without compilation."""
    state, rng = train_plan.state, np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.02, leaf.shape).astype(leaf.dtype), state.params)
    state = jax.jit(train_plan.create, out_shardings=train_plan.shardings)(put(params, train_plan.shardings.params))
    batch = to_global(train_plan.stream[0], train_plan.mesh, train_plan.global_batch_size)
    times: list[float] = []
    while len(times) <= TIMED and sum(times[1:]) < ENOUGH:  # the first call compiles
        started = time.perf_counter()
        state, _ = jax.block_until_ready(train_plan.train_step(state, batch))
        times.append(time.perf_counter() - started)
    return sum(times[1:]) / (len(times) - 1)
