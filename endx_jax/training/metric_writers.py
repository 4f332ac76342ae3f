"""Copies of a run's logged numbers for TensorBoard (tensorboardX) and Weights & Biases."""

import importlib.util
import os
import pathlib
import socket
import struct
import time
import uuid
from typing import Protocol

from endx_jax.errors import EndxError
from endx_jax.files import Growing, write_text

WANDB_ID = "wandb_id"  # file with the id of the Weights & Biases run, which a resumed training continues


class MetricWriter(Protocol):
    """A destination of logged numbers."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the numbers of a step."""

    def close(self) -> None:
        """Waits until everything is written."""


def check_installed(wandb_project: str) -> None:
    """Raises EndxError if `train.wandb_project` is set and wandb is not installed."""
    if wandb_project and importlib.util.find_spec("wandb") is None:
        raise EndxError("train.wandb_project needs Weights & Biases: pip install 'endx_jax[wandb]', or leave it empty")


def open_writers(workdir: pathlib.Path, *, resume_step: int, wandb_project: str) -> list[MetricWriter]:
    """Opens Weights & Biases if a project is named, and TensorBoard if tensorboardX is installed.

    Args:
      workdir: of the run.
      resume_step: the step training resumes from.
      wandb_project: name of the project; empty: none.
    """
    writers: list[MetricWriter] = []
    if wandb_project:
        writers.append(WeightsAndBiases(workdir, wandb_project))
    if importlib.util.find_spec("tensorboardX") is not None:
        writers.append(TensorBoard(workdir, resume_step))
    return writers


class WeightsAndBiases:
    """Writer to Weights & Biases, whose library keeps a copy in the workdir's `wandb` folder."""

    def __init__(self, workdir: pathlib.Path, project: str):
        """Starts a run of the project, or continues the workdir's earlier one.

        Raises:
          EndxError: Weights & Biases refuses the project.
        """
        import wandb

        id_file = workdir / WANDB_ID
        if not id_file.exists():
            write_text(id_file, uuid.uuid4().hex)
        name, run_id = workdir.absolute().name, id_file.read_text()
        try:
            self._run = wandb.init(project=project, name=name, id=run_id, resume="allow", dir=str(workdir))
        except wandb.Error as failure:
            raise EndxError(
                f"Weights & Biases does not take train.wandb_project={project} ({' '.join(str(failure).split())}): "
                "log in with `wandb login`, or set WANDB_MODE=offline"
            ) from None

    def write(self, step: int, values: dict[str, float]) -> None:
        """Sends the numbers of a step; Weights & Biases ignores steps that it already has."""
        self._run.log(values, step=step)

    def close(self) -> None:
        """Waits until everything is sent."""
        self._run.finish()


class TensorBoard:
    """Writer of events in the workdir's `tensorboard` folder.

    Messages and checksums are computed by tensorboardX. Its file writer runs in a thread, and the run hangs when that
    thread dies of a full disk, so events are appended here.
    """

    def __init__(self, workdir: pathlib.Path, resume_step: int):
        """Opens a new file; TensorBoard hides earlier events after `resume_step`."""
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = Growing(workdir / "tensorboard" / name)
        self._add(file_version="brain.Event:2")
        self._add(file_version="brain.Event:2", step=resume_step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the numbers of a step.

        Raises:
          EndxError: the disk is full.
        """
        from tensorboardX.proto.summary_pb2 import Summary

        self._add(step=step, summary=Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in values.items()]))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _add(self, **fields) -> None:
        """Appends an event as a TFRecord: length, its checksum, message, its checksum."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        message = Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(message))
        framed = [length, struct.pack("<I", masked_crc32c(length)), message, struct.pack("<I", masked_crc32c(message))]
        self._file.add(b"".join(framed))
