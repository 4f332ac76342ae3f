"""The numbers of a run: `metrics.jsonl`, one object a line, and TensorBoard events where its writer is installed."""

import importlib.util
import json
import pathlib

from endx_jax.files import write_text

FILE = "metrics.jsonl"


class MetricLog:
    """Appends to the log of a workdir; made on one process only."""

    def __init__(self, workdir: pathlib.Path, *, resume_step: int):
        """Opens the log; lines after `resume_step`, which will be run again, are dropped."""
        self._path = workdir / FILE
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        kept = [line for line in map(_parse, lines) if line is not None and line["step"] <= resume_step]
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))
        self._stream = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self._events = _tensorboard(workdir, resume_step)

    def write(self, step: int, values: dict[str, float], prefix: str = "") -> None:
        """Writes one line; names get the prefix, as in `validation/mrr`."""
        values = {f"{prefix}{name}": value for name, value in values.items()}
        self._stream.write(json.dumps({"step": step, **values}) + "\n")
        self._stream.flush()
        if self._events:
            for name, value in values.items():
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Closes the files."""
        self._stream.close()
        if self._events:
            self._events.close()


def _parse(line: str) -> dict | None:
    """A line of the log, or None for one that a crash cut short."""
    try:
        return json.loads(line)
    except ValueError:
        return None


def _tensorboard(workdir: pathlib.Path, resume_step: int):
    if importlib.util.find_spec("tensorboardX") is None:
        return None
    import tensorboardX

    return tensorboardX.SummaryWriter(str(workdir / "tensorboard"), purge_step=resume_step + 1)
