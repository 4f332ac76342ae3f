"""The numbers of a run: `metrics.jsonl`, one object a line, and copies for TensorBoard and Weights & Biases."""

import json
import pathlib

from endx_jax.files import Growing, write_text
from endx_jax.training.tensorboard import TensorBoard
from endx_jax.training.wandb_log import WandbLog

FILE = "metrics.jsonl"


class MetricLog:
    """Appends to the log of a workdir; made on one process only."""

    def __init__(self, workdir: pathlib.Path, *, resume_step: int, wandb_project: str = ""):
        """Opens the log.

        Args:
          workdir: where it is.
          resume_step: lines after it, which will be run again, are dropped.
          wandb_project: of Weights & Biases; empty: none.
        """
        self._copies: list[TensorBoard | WandbLog] = []
        if wandb_project:
            self._copies.append(WandbLog(workdir, wandb_project))
        if TensorBoard.is_installed():
            self._copies.append(TensorBoard(workdir, resume_step))
        path = workdir / FILE
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in map(_parse, lines) if line is not None and line["step"] <= resume_step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = Growing(path)

    def write(self, step: int, values: dict[str, float], prefix: str = "") -> None:
        """Writes one line; names get the prefix, as in `validation/mrr`.

        Raises:
          EndxError: when the disk is full; what was cut short is dropped by the next start.
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


def _parse(line: str) -> dict | None:
    """A line of the log, or None for one that a crash cut short."""
    try:
        return json.loads(line)
    except ValueError:
        return None
