"""How long a step takes at least on a chip, were it always at its data sheet's best."""

import dataclasses

from endx_jax.planning.chips import Chip
from endx_jax.planning.estimate import Estimate

# Of a chip's memory, what is left to a program: the rest is the runtime's, and lost between buffers.
USABLE = 0.92


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of one step; all of them bounds from below, since no program reaches a data sheet.

    Attributes:
      compute: of the matrix products, at the bfloat16 peak.
      memory: of the bytes to and from the device's memory.
      network: of the bytes sent to other devices.
    """

    compute: float
    memory: float
    network: float

    @property
    def seconds(self) -> float:
        """Of a step, if all three went on at once."""
        return max(self.compute, self.memory, self.network)

    @property
    def bound(self) -> str:
        """Which of the three it is."""
        return max(("compute", "memory", "network"), key=lambda name: getattr(self, name))


def roofline(estimate: Estimate, chip: Chip) -> Roofline:
    """The roofline of a step on a chip."""
    return Roofline(
        compute=estimate.flops / chip.flops,
        memory=estimate.moved / chip.bandwidth,
        network=sum(one.sent for one in estimate.traffic) / chip.link,
    )


def fits(peak: int, chip: Chip) -> bool:
    """Whether so many bytes can be held."""
    return peak <= USABLE * chip.memory
