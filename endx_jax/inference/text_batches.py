"""Texts in batches of about equal length, each with as many as fill a budget of padded tokens, in few shapes."""

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
    """Some of the texts.

    Attributes:
      places: int [n], which.
      shape: (rows, width) over all processes; rows beyond n repeat texts.
      tokens: NumPy [rows, width], of which only the rows that this process's devices hold.
    """

    places: np.ndarray
    shape: tuple[int, int]
    tokens: Tokens


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes of batches.

    Attributes:
      mesh: over which their rows are split.
      limit: tokens of a text at most.
      budget: padded tokens a device is given at a time; at least a text, however long.
    """

    mesh: Mesh
    limit: int
    budget: int

    @classmethod
    def of(cls, mesh: Mesh, limit: int, batch_size: int) -> "Shapes":
        """Batches of `batch_size` texts of the greatest length, and of as many padded tokens where texts are shorter.

        A CPU is given no more than `CPU_TOKENS` at a time.
        """
        budget = -(-batch_size // batch_shards(mesh)) * limit
        if platform(mesh) == "cpu":
            budget = min(budget, CPU_TOKENS)
        return cls(mesh, limit, budget)

    def width(self, length: int) -> int:
        """Returns the width that texts of up to `length` tokens are padded to."""
        step = next((step for upto, step in LADDER if length <= upto), LAST_STEP)
        return padded_length(length, self.limit, step)

    def rows(self, width: int, texts: int) -> int:
        """Rows of a batch of this width when so many texts are left for it: a whole batch's, or a part of that."""
        each = max(1, self.budget // width)
        shards = batch_shards(self.mesh)
        while each > 1 and -(-each // PART) * shards >= texts:
            each = -(-each // PART)
        return each * shards


def batches(tokenize: Callable[[Sequence[T]], TokenTable], texts: Sequence[T], shapes: Shapes) -> Iterator[TextBatch]:
    """All texts, or whatever stands for them, tokenised and padded in threads ahead of their use."""
    windows = (texts[start : start + WINDOW] for start in range(0, len(texts), WINDOW))
    return ahead(_cut(ahead(map(tokenize, windows), 1), shapes), PADDED_AHEAD)


def _cut(tables: Iterable[TokenTable], shapes: Shapes) -> Iterator[TextBatch]:
    """The batches of all windows: within one, the longest texts come first."""
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
    """The same items in the same order, of which up to `most` are made in a thread before they are asked for.

    What fails in the thread is raised here, where that item was due.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1) as thread:
        coming = collections.deque(thread.submit(next, iterator, _END) for _ in range(most))
        while (item := coming.popleft().result()) is not _END:
            coming.append(thread.submit(next, iterator, _END))
            yield item  # type: ignore[misc]  # it is not _END


def late(items: Iterable[T], by: int) -> Iterator[T]:
    """The same items, each when `by` more have been made."""
    waiting: collections.deque[T] = collections.deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > by:
            yield waiting.popleft()
    yield from waiting
