"""Memory of a run on the local machine, from its compiled step."""

import dataclasses

import jax
import jax.numpy as jnp

from endx_jax.experiment.compilation_cache import use_compilation_cache
from endx_jax.experiment.config import Settings
from endx_jax.experiment.execution import rows_at_once
from endx_jax.parallel.memory import resident
from endx_jax.planning.compiled import compile_step
from endx_jax.planning.subject import Texts, outline_run


@dataclasses.dataclass(frozen=True)
class Machine:
    """Memory of a training step on the local devices.

    Attributes:
      device: kind of the device.
      dtype: dtype of the towers.
      tower_chunk: pairs that a device encodes at a time.
      free: bytes available to the process; on a CPU those of the host.
      process: bytes held by the process beside the step: on a CPU the interpreter, libraries and data.
      step: bytes of state, batch, temporaries and results on all devices that share the memory.
      compiled: true if `step` is the compiled program's; a step that can't fit is only estimated.
    """

    device: str
    dtype: str
    tower_chunk: int
    free: int
    process: int
    step: int
    compiled: bool

    @property
    def peak(self) -> int:
        """Peak bytes in a step: on a CPU of the training process, else of one device."""
        return self.process + self.step

    @property
    def fits(self) -> bool:
        """True if training would start."""
        return self.peak <= self.free


def plan_machine(settings: Settings, texts: Texts) -> Machine:
    """Compiles the largest step of a run for the local devices, if it can fit.

    Args:
      settings: settings of the run.
      texts: its training pairs.

    Raises:
      EndxError: training would refuse the settings.
    """
    subject = outline_run(settings, texts).on(None)
    train_plan = subject.train_plan
    memory, expected = train_plan.memory, train_plan.expected_peak(subject.model)
    compiled = expected <= memory.total
    process, step = memory.held, expected - memory.held
    if compiled:
        use_compilation_cache(settings.train.compilation_cache)
        step = memory.devices * compile_step(subject).peak
        if "bytes_limit" not in (jax.local_devices()[0].memory_stats() or {}):
            process = max(process, resident())  # with what the compiler keeps
    return Machine(
        device=jax.local_devices()[0].device_kind,
        dtype=str(jnp.dtype(train_plan.execution.dtype)),
        tower_chunk=rows_at_once(train_plan.execution, settings.train.global_batch_size),
        free=memory.total,
        process=process,
        step=step,
        compiled=compiled,
    )
