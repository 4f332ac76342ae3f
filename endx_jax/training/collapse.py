"""Detection of collapsed posteriors, which carry no information about their text."""

from collections.abc import Iterator, Mapping

# In nats a text: the posterior of a text that carries less tells it from fewer than three others.
COLLAPSED = 1.0
PREFIX = "kl/"


class CollapseWatch:
    """Detector of posterior collapse that reports each collapse once."""

    def __init__(self):
        """Starts without reports."""
        self._said: set[str] = set()

    def look(self, step: int, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yields a line for every posterior that has collapsed since the last call.

        Args:
          step: named in the line.
          metrics: of the step; `kl/NAME` is a posterior's divergence from the prior in nats per text.
        """
        for name, divergence in metrics.items():
            if not name.startswith(PREFIX):
                continue
            if divergence >= COLLAPSED:
                self._said.discard(name)
            elif name not in self._said:
                self._said.add(name)
                yield (
                    f"warning: the posterior of each {name.removeprefix(PREFIX)} has collapsed onto the prior: at step "
                    f"{step} it carries {divergence:.2g} nats; let beta rise more slowly (objective.anneal_steps or "
                    "anneal_epochs), lower objective.kl_weight, or set objective.free_bits"
                )
