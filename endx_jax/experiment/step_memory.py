"""Choices of chunks and rematerialisation: their order by cost, and the first that fits in memory."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from endx_jax.experiment.config import Settings
from endx_jax.models.stack import REMATS
from endx_jax.pretrained.settings import AUTO

# Tokens of a chunk that keep a device busy; larger chunks are not faster. Measured on CPUs, estimated for accelerators.
TOKENS_PER_CHUNK, ACCELERATOR_TOKENS_PER_CHUNK = {"cpu": 1 << 14}, 1 << 16
# Compiled choices after which the first of them that fits is taken.
MAX_COMPILED = 4


class StepMemory(NamedTuple):
    """Settings of a step that affect its memory and time, and not its results.

    Attributes:
      tower_chunk: number of pairs that a device encodes at a time; 0 for all its pairs.
      remat: rematerialisation policy of the layers, a key of `stack.REMATS`.
    """

    tower_chunk: int
    remat: str

    def __str__(self):
        """Describes the choice in a message."""
        pairs = f"{self.tower_chunk} pairs at a time" if self.tower_chunk else "all pairs at once"
        return f"{pairs}, remat {self.remat}"


def options_by_cost(settings: Settings, rows: int, tokens: int, platform: str) -> list[StepMemory]:
    """Lists the choices that the settings leave, in order of the FLOP that a step computes.

    `full` recomputes the layers, and a chunk recomputes the whole towers. So chunks come after all policies, and
    smaller chunks, which cost no more FLOP, before policies inside chunks.

    Args:
      settings: settings of the run; `train.tower_chunk=-1` and `model.remat=auto` leave a choice.
      rows: pairs of a batch on one device.
      tokens: tokens of an average pair.
      platform: platform of the devices. On CPUs `auto` is `none`.
    """
    setting, chunk = settings.model.remat, settings.train.tower_chunk
    remats = [setting] if setting != AUTO else ["none"] if platform == "cpu" else list(REMATS)
    if chunk >= 0:
        return [StepMemory(chunk, remat) for remat in remats]
    largest = min(rows - 1, max(1, TOKENS_PER_CHUNK.get(platform, ACCELERATOR_TOKENS_PER_CHUNK) // tokens))
    chunks = [1 << n for n in reversed(range(largest.bit_length()))]
    whole, chunked = [StepMemory(0, remat) for remat in remats], [StepMemory(chunk, remats[0]) for chunk in chunks]
    return [*whole, *chunked, *(StepMemory(chunk, remat) for chunk in chunks[-1:] for remat in remats[1:])]


def first_that_fits(
    ordered: Sequence[StepMemory],
    room: int,
    expected: Callable[[StepMemory], int],
    compiled: Callable[[StepMemory], int],
) -> StepMemory:
    """Returns the first choice whose compiled step fits into memory; the last one if none fits.

    The step is compiled for the first choice that is expected to fit. Its bytes then correct what is expected of the
    others, until the first choice that should fit is one that was compiled.

    Args:
      ordered: choices, best first.
      room: bytes available to the activations of one device.
      expected: estimate of these bytes for a choice, from shapes.
      compiled: these bytes by the compiled step; called at most once with each choice.
    """
    measured: dict[StepMemory, int] = {}
    scale = 1.0

    def fits(choice: StepMemory) -> bool:
        return (measured[choice] if choice in measured else scale * expected(choice)) <= room

    while True:
        ready = [choice for choice in ordered if choice in measured and fits(choice)]
        enough = ready and len(measured) >= MAX_COMPILED
        best = next(filter(fits, ready if enough else ordered), ordered[-1])
        if best in measured:
            return best
        measured[best] = compiled(best)
        scale = measured[best] / expected(best)
