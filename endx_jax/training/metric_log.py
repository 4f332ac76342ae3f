"""Metric log of a run, `metrics.jsonl`, with one JSON object per line, and writers for TensorBoard and W&B."""

import importlib.util
import json
import os
import pathlib
import socket
import struct
import time
import uuid
from typing import Protocol

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.files import AppendOnlyFile, write_text

FILE = "metrics.jsonl"


class MetricLog:
    """Writes metrics to `metrics.jsonl`, TensorBoard and Weights & Biases; for the primary process only."""

    def __init__(self, workdir: pathlib.Path, *, resume_step: int, wandb_project: str = ""):
        """Opens the log.

        Args:
          workdir: the run's folder.
          resume_step: step from which training resumes; lines of later steps are removed.
          wandb_project: name of the Weights & Biases project; empty for none.
        """
        self._copies = open_writers(workdir, resume_step=resume_step, wandb_project=wandb_project)
        path = workdir / FILE
        lines = [line for line in read_metrics(path) if line["step"] <= resume_step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
        self._file = AppendOnlyFile(path)

    def write(self, step: int, values: dict[str, float], prefix: str = "") -> None:
        """Writes one line; `prefix` is prepended to each name, as in `validation/mrr`.

        Raises:
          EndxError: the disk is full. A truncated line is removed at the next start.
        """
        values = {f"{prefix}{name}": value for name, value in values.items()}
        self._file.add((json.dumps({"step": step, **values}) + "\n").encode())
        for copy in self._copies:
            copy.write(step, values)

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        for copy in self._copies:
            copy.close()


def read_metrics(file: pathlib.Path) -> list[dict]:
    """Returns the lines of a log; an empty list if the file does not exist.

    Skips lines that are not JSON objects with an integer `step`: a crash can truncate a line or leave zero bytes.
    """
    lines = []
    for number, line in enumerate(file.read_bytes().splitlines() if file.exists() else (), start=1):
        where = f"{file}, line {number}"
        try:
            values = json_files.parse(line, where, dict)
            json_files.as_whole(values.get("step"), f"{where}: 'step'")
        except EndxError:
            continue
        lines.append(values)
    return lines


WANDB_ID = "wandb_id"  # file with the id of the Weights & Biases run, which resumed training continues


class MetricWriter(Protocol):
    """Destination of metrics."""

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the metrics of a step."""

    def close(self) -> None:
        """Waits until all metrics are written."""


def check_installed(wandb_project: str) -> None:
    """Raises EndxError if `train.wandb_project` is set and wandb is not installed."""
    # A folder that Weights & Biases has written, also named `wandb`, is found as a package without a file.
    if wandb_project and getattr(importlib.util.find_spec("wandb"), "origin", None) is None:
        raise EndxError("train.wandb_project needs Weights & Biases: pip install 'endx_jax[wandb]', or leave it empty")


def open_writers(workdir: pathlib.Path, *, resume_step: int, wandb_project: str) -> list[MetricWriter]:
    """Opens a writer for Weights & Biases if a project is given, and one for TensorBoard if it is installed."""
    writers: list[MetricWriter] = []
    if wandb_project:
        writers.append(WeightsAndBiases(workdir, wandb_project))
    if importlib.util.find_spec("tensorboardX") is not None:
        writers.append(TensorBoard(workdir, resume_step))
    return writers


class WeightsAndBiases:
    """Sends metrics to Weights & Biases, whose library keeps a copy in the workdir's `wandb` folder."""

    def __init__(self, workdir: pathlib.Path, project: str):
        """Starts a Weights & Biases run, or continues the earlier one of this workdir.

        Raises:
          EndxError: Weights & Biases rejects the project or the login.
        """
        import wandb

        id_file = workdir / WANDB_ID
        if not id_file.exists():
            write_text(id_file, uuid.uuid4().hex)
        name, run_id = workdir.absolute().name, id_file.read_text()
        try:
            self._run = wandb.init(project=project, name=name, id=run_id, resume="allow", dir=str(workdir))
        except (wandb.Error, ValueError) as failure:  # ValueError: an environment variable WANDB_* is invalid
            raise EndxError(
                f"Weights & Biases rejects train.wandb_project={project} ({' '.join(str(failure).split())}): "
                "log in with `wandb login`, or set WANDB_MODE=offline"
            ) from None

    def write(self, step: int, values: dict[str, float]) -> None:
        """Sends the metrics of a step; Weights & Biases ignores steps that it already has."""
        self._run.log(values, step=step)

    def close(self) -> None:
        """Waits until all metrics are sent."""
        self._run.finish()


class TensorBoard:
    """Writes event files into the workdir's `tensorboard` folder.

    tensorboardX provides the messages and checksums. Its own file writer is not used: it runs on a thread, and a full
    disk kills that thread and makes the run hang.
    """

    def __init__(self, workdir: pathlib.Path, resume_step: int):
        """Opens a new event file; TensorBoard hides events of earlier files after `resume_step`."""
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = AppendOnlyFile(workdir / "tensorboard" / name)
        self._add(file_version="brain.Event:2")
        self._add(file_version="brain.Event:2", step=resume_step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the metrics of a step.

        Raises:
          EndxError: the disk is full.
        """
        from tensorboardX.proto.summary_pb2 import Summary

        self._add(step=step, summary=Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in values.items()]))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _add(self, **fields) -> None:
        """Appends an event as a TFRecord: length, checksum of the length, message, checksum of the message."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.record_writer import masked_crc32c

        message = Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(message))
        framed = [length, struct.pack("<I", masked_crc32c(length)), message, struct.pack("<I", masked_crc32c(message))]
        self._file.add(b"".join(framed))
