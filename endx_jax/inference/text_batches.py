"""Batches of texts of about equal length, which fill a budget of padded tokens, in few shapes."""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
from jax.sharding import Mesh

from endx_jax.batch import Tokens
from endx_jax.data.token_tables import TokenTable, padded_length
from endx_jax.models.sharding_hints import platform
from endx_jax.parallel.sharding import batch_shards, local_rows

T = TypeVar("T")

# Texts that are tokenised and sorted together: so many that neighbours are of one length, and few to keep.
WINDOW = 32768

# Widths texts are padded to: up to a length in steps of so many tokens.
LADDER = ((32, 4), (64, 8), (128, 16), (256, 32))
LAST_STEP = 64

# Padded tokens that a CPU is given at a time, however large the batch may be: of a larger batch's buffers each page is
# new, and has to be cleared first.
CPU_TOKENS = 1024

# Batches padded ahead of the one that is being encoded.
PADDED_AHEAD = 2

# A batch that ends a window has the rows of a whole one over a power of this.
PART = 4

_END = object()


class TextBatch(NamedTuple):
    """Batch of some of the texts.

    Attributes:
      places: int [n], indices of the texts.
      shape: (rows, width) over all processes; rows beyond n repeat texts.
      tokens: NumPy [rows, width], only the rows of this process's devices.
    """

    places: np.ndarray
    shape: tuple[int, int]
    tokens: Tokens


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes of batches.

    Attributes:
      mesh: over which their rows are split.
      limit: maximum tokens of a text.
      budget: maximum padded tokens per device and batch; a batch has at least one text.
    """

    mesh: Mesh
    limit: int
    budget: int

    @classmethod
    def of(cls, mesh: Mesh, limit: int, batch_size: int) -> "Shapes":
        """Returns shapes of `batch_size` texts of the maximum length, or as many padded tokens of shorter texts.

        On a CPU a batch has at most `CPU_TOKENS` tokens.
        """
        budget = -(-batch_size // batch_shards(mesh)) * limit
        if platform(mesh) == "cpu":
            budget = min(budget, CPU_TOKENS)
        return cls(mesh, limit, budget)

    def width(self, length: int) -> int:
        """Returns the padded width for texts of up to `length` tokens."""
        step = next((step for upto, step in LADDER if length <= upto), LAST_STEP)
        return padded_length(length, self.limit, step)

    def rows(self, width: int, texts: int) -> int:
        """Returns the rows of a batch of this width for the remaining texts: a whole batch or a part of it."""
        each = max(1, self.budget // width)
        shards = batch_shards(self.mesh)
        while each > 1 and -(-each // PART) * shards >= texts:
            each = -(-each // PART)
        return each * shards


def batches(tokenize: Callable[[Sequence[T]], TokenTable], texts: Sequence[T], shapes: Shapes) -> Iterator[TextBatch]:
    """Yields batches of all texts, tokenized and padded ahead in threads."""
    windows = (texts[start : start + WINDOW] for start in range(0, len(texts), WINDOW))
    return ahead(_cut(ahead(map(tokenize, windows), 1), shapes), PADDED_AHEAD)


def _cut(tables: Iterable[TokenTable], shapes: Shapes) -> Iterator[TextBatch]:
    """Yields the batches of all windows; in each window the longest texts come first."""
    first = 0
    for table in tables:
        order = np.argsort(-table.lengths, kind="stable")
        start = 0
        while start < len(order):
            width = shapes.width(table.lengths[order[start]])
            rows = shapes.rows(width, len(order) - start)
            chosen = order[start : start + rows]
            own = np.resize(chosen, rows)[local_rows(shapes.mesh, rows)]
            yield TextBatch(first + chosen, (rows, width), table.pad(own, width))
            start += len(chosen)
        first += len(order)


def ahead(items: Iterable[T], most: int) -> Iterator[T]:
    """Yields the items in order; up to `most` of them are computed ahead in a thread.

    An exception in the thread is raised at its item.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming = collections.deque(thread.submit(next, iterator, _END) for _ in range(most))
        while (item := coming.popleft().result()) is not _END:
            coming.append(thread.submit(next, iterator, _END))
            yield item  # type: ignore[misc]  # it is not _END


def late(items: Iterable[T], by: int) -> Iterator[T]:
    """Yields the items, each after `by` more have been computed."""
    waiting: collections.deque[T] = collections.deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > by:
            yield waiting.popleft()
    yield from waiting
