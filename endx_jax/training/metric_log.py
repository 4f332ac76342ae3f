"""Metric log of a run, `metrics.jsonl`: one JSON object per line."""

import json
import pathlib

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.files import AppendOnlyFile, write_text
from endx_jax.training.metric_writers import open_writers

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
        kept = [line for line in read_metrics(path) if line["step"] <= resume_step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
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
