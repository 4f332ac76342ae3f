"""Early stopping by a validation metric."""

import dataclasses
from collections.abc import Mapping

from endx_jax.parallel.distributed import all_processes


@dataclasses.dataclass
class EarlyStopping:
    """Ends training after `patience` validations in a row without a new best value of a metric.

    It has no state to save: validations are at multiples of `every`, and the best checkpoint, which is always kept, has
    the step and the value of the best one. So a resumed run stops where an uninterrupted one does.

    Attributes:
      metric: name of the metric; higher is better.
      patience: number of validations; 0 to never stop.
      every: steps between validations.
      best: step and value of the best validation; None before the first.
    """

    metric: str
    patience: int
    every: int
    best: tuple[int, float] | None = None

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of a validation."""
        if self.metric in metrics and (self.best is None or metrics[self.metric] > self.best[1]):
            self.best = (step, metrics[self.metric])

    def stops_at(self, step: int) -> bool:
        """Returns true if training ends at a step; every process must call this."""
        if not self.patience:
            return False
        without = 0 if self.best is None else step // self.every - self.best[0] // self.every
        return all_processes(without >= self.patience)
