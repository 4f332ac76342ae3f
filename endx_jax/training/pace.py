"""Pace of a run: step times, their share of the wall time, and waits for data."""

import collections

import numpy as np

# Steps whose times the percentiles are of: the newest.
WINDOW = 200


class Pace:
    """Sum of the seconds of one process, which are given by the caller."""

    def __init__(self) -> None:
        self._steps: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._in_steps = self._stalled = 0.0

    def step(self, seconds: float, stalled: float) -> None:
        """Records a step that ended `seconds` after the previous one, without data for `stalled` of them."""
        self._steps.append(seconds)
        self._in_steps += max(0.0, seconds - stalled)
        self._stalled += stalled

    def measures(self, wall: float) -> dict[str, float]:
        """Returns the figures to log.

        Args:
          wall: seconds since this start of the run.

        Returns:
          `step_seconds_p50`, `_p95` and `_max` of the last `WINDOW` steps; `goodput`, the share of `wall` in steps,
          without waits for data; `data_stall_seconds`, the waits since the last call. Empty before the second step,
          since the time of the first is mostly compilation.
        """
        if not self._steps:
            return {}
        middle, high, most = np.percentile(self._steps, (50, 95, 100))
        stalled, self._stalled = self._stalled, 0.0
        return {
            "step_seconds_p50": round(float(middle), 4),
            "step_seconds_p95": round(float(high), 4),
            "step_seconds_max": round(float(most), 4),
            "goodput": round(self._in_steps / wall, 4),
            "data_stall_seconds": round(stalled, 3),
        }
