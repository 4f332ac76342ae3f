"""Metric log of a run, `metrics.jsonl`, with one JSON object per line, and writers for TensorBoard and W&B."""

import importlib.util
import json
import os
import pathlib
import time
import uuid

from endx_jax import json_files
from endx_jax.errors import EndxError, install
from endx_jax.files import AppendOnlyFile, reporting_full_disk, write_text

FILE = "metrics.jsonl"
FLUSH_SECONDS = 10.0  # time after which TensorBoard's events are on disk


class MetricLog:
    """Writes metrics to `metrics.jsonl`, TensorBoard and Weights & Biases; for the primary process only."""

    def __init__(self, workdir: pathlib.Path, *, resume_step: int, wandb_project: str = ""):
        """Opens the log and removes lines of steps after `resume_step`; an empty `wandb_project` is none."""
        self._copies: list[WeightsAndBiases | TensorBoard] = []
        if wandb_project:
            self._copies.append(WeightsAndBiases(workdir, wandb_project))
        if importlib.util.find_spec("tensorboardX") is not None:
            self._copies.append(TensorBoard(workdir, resume_step))
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


def check_installed(wandb_project: str) -> None:
    """Raises EndxError if `train.wandb_project` is set and wandb is not installed."""
    # A folder that Weights & Biases has written, also named `wandb`, is found as a package without a file.
    if wandb_project and getattr(importlib.util.find_spec("wandb"), "origin", None) is None:
        raise EndxError(f"train.wandb_project needs Weights & Biases: {install('wandb')}, or leave it empty")


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

    Uses tensorboardX's writer without its thread, which would end silently on a full disk and make the run hang.
    """

    def __init__(self, workdir: pathlib.Path, resume_step: int):
        """Opens a new event file; TensorBoard hides events of earlier files after `resume_step`."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        self._folder, self._flushed = workdir / "tensorboard", 0.0
        with reporting_full_disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(self._folder / "events"), f".{os.getpid()}")
        self._add(file_version="brain.Event:2", step=resume_step + 1)
        self._add(session_log=SessionLog(status=SessionLog.START), step=resume_step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes the metrics of a step.

        Raises:
          DiskFull: the disk is full, which is noticed after at most `FLUSH_SECONDS`.
        """
        from tensorboardX.proto.summary_pb2 import Summary

        self._add(step=step, summary=Summary(value=[Summary.Value(tag=n, simple_value=v) for n, v in values.items()]))

    def close(self) -> None:
        """Closes the file."""
        with reporting_full_disk(self._folder):
            self._events.close()

    def _add(self, **fields) -> None:
        from tensorboardX.proto.event_pb2 import Event

        with reporting_full_disk(self._folder):
            self._events.write_event(Event(wall_time=time.time(), **fields))
            if time.monotonic() - self._flushed > FLUSH_SECONDS:
                self._events.flush()
                self._flushed = time.monotonic()
