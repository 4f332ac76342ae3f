"""Batches of texts of similar length, with a fixed budget of padded tokens and few shapes, and the loop over them."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import tqdm
from jax.sharding import Mesh

from endx_jax.batch import TokenVectors
from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.data.batches.token_tables import TokenTable
from endx_jax.models.sharding_hints import platform
from endx_jax.numerics import rung
from endx_jax.parallel.console import ticking
from endx_jax.parallel.sharding import batch_shards, local_rows, to_global

T = TypeVar("T")

# Texts that are tokenized and sorted together: enough that neighbours have similar lengths, few enough for memory.
WINDOW = 32768

LONG = 8192  # tokens; a batch of longer texts has fewer than `batch_size` of them

# Maximum padded tokens of a batch on a CPU. Buffers of larger batches are new pages, which the system clears first.
CPU_TOKENS = 1024

PADDED_AHEAD = 2  # batches that are padded ahead of the one that is encoded
FEW = 32  # texts up to which threads would take longer than they save
IN_FLIGHT = 1  # batches that the device computes while earlier results are fetched
PART = 4  # the last batch of a window has the rows of a full batch, divided by a power of this


class TextBatch(NamedTuple):
    """Batch of texts.

    Attributes:
      indices: int [n], indices of the texts.
      rows: number of rows over all processes; those beyond n repeat texts.
      inputs: NumPy arrays of the rows of this process's devices: `Tokens` [rows, width], or another tree.
    """

    indices: np.ndarray
    rows: int
    inputs: Any


def padded_width(length: int) -> int:
    """Returns the width in tokens to which texts of up to `length` tokens are padded."""
    return rung(max(1, length), 8 if length <= 512 else 16, step=4)


def split_by_length(
    lengths: np.ndarray, width_of: Callable[[int], int], rows_of: Callable[[int, int], int]
) -> Iterator[tuple[np.ndarray, int, int]]:
    """Splits texts into batches of similar lengths, longest first; yields (indices, rows, width) of each.

    `width_of` gives the width of a batch for its longest text, and `rows_of` the rows for a width and the texts left.
    """
    order, start = np.argsort(-lengths, kind="stable"), 0
    while start < len(order):
        width = width_of(int(lengths[order[start]]))
        rows = rows_of(width, len(order) - start)
        yield order[start : start + rows], rows, width
        start += rows


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Shapes of batches.

    Attributes:
      mesh: device mesh over which rows are split.
      limit: maximum length of a text in tokens.
      budget: maximum padded tokens per device, exceeded only by a single text.
    """

    mesh: Mesh
    limit: int
    budget: int

    @classmethod
    def of(cls, mesh: Mesh, limit: int, batch_size: int) -> "Shapes":
        """Sets the budget to `batch_size` texts of `limit` tokens, at most `LONG`; on a CPU, at most `CPU_TOKENS`."""
        budget = -(-batch_size // batch_shards(mesh)) * min(limit, LONG)
        if platform(mesh) == "cpu":
            budget = min(budget, CPU_TOKENS)
        return cls(mesh, limit, budget)

    def split(self, lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int, int]]:
        """Splits texts of these lengths into batches, as `split_by_length`."""
        return split_by_length(lengths, lambda length: min(padded_width(length), self.limit), self.rows)

    def rows(self, width: int, texts: int) -> int:
        """Returns the rows of a batch of this width if `texts` texts remain: those of a full batch or a part of it."""
        each = max(1, self.budget // width)
        shards = batch_shards(self.mesh)
        while each > 1 and -(-each // PART) * shards >= texts:
            each = -(-each // PART)
        return each * shards


def batches(
    tokenize: Callable[[Sequence[T]], TokenTable],
    texts: Sequence[T],
    shapes: Shapes,
    prepare: Callable[[list[tuple[int, int]]], None] = lambda shapes: None,
    *,
    window: int = WINDOW,
) -> Generator[TextBatch, None, None]:
    """Iterates over batches of all texts, or of items that `tokenize` takes; threads prepare many texts ahead of use.

    Texts are sorted within windows of `window` texts. `prepare` is called with the (rows, width) of all batches of a
    window, before its first batch.
    """
    windows = (texts[start : start + window] for start in range(0, len(texts), window))
    if len(texts) <= FEW:
        return _split(map(tokenize, windows), shapes, prepare)
    return prefetch(_split(prefetch(map(tokenize, windows), 1), shapes, prepare), PADDED_AHEAD)


def _split(tables: Iterable[TokenTable], shapes: Shapes, prepare: Callable) -> Generator[TextBatch, None, None]:
    """Splits each window of texts into batches, longest texts first."""
    first = 0
    for table in tables:
        parts = [*shapes.split(table.lengths)]
        prepare([*dict.fromkeys((rows, width) for _, rows, width in parts)])
        for chosen, rows, width in parts:
            local = np.resize(chosen, rows)[local_rows(shapes.mesh, rows)]
            yield TextBatch(first + chosen, rows, table.pad(local, width))
        first += len(table)


def prefetch(items: Iterable[T], count: int) -> Generator[T, None, None]:
    """Iterates over items, up to `count` of which a thread computes ahead of use.

    An exception in the thread is raised where its item was due.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1) as thread:
        pending = collections.deque(thread.submit(list, itertools.islice(iterator, 1)) for _ in range(count))
        while item := pending.popleft().result():  # empty at the end
            pending.append(thread.submit(list, itertools.islice(iterator, 1)))
            yield from item


def equal_batches(count: int, rows: int, mesh: Mesh, inputs: Callable[[np.ndarray], Any]) -> Iterator[TextBatch]:
    """Yields batches of `count` items in their order, all of `rows` rows; `inputs` gives those of an array of items."""
    local = local_rows(mesh, rows)
    for start in range(0, count, rows):
        indices = np.arange(start, min(start + rows, count))
        yield TextBatch(indices, rows, inputs(np.resize(indices, rows)[local]))


def compute_batches(prepared: Iterable[TextBatch], compute: Callable[[Any], Any], mesh: Mesh, bar: tqdm.tqdm) -> Any:
    """Computes every batch and returns the results of all texts in their order.

    The device computes `IN_FLIGHT` batches while earlier results are fetched.

    Args:
      prepared: batches of all texts, whose number is `bar.total`.
      compute: function from the inputs of a batch, split over the mesh, to a tree of arrays [rows, ...], which may be
        computed later.
      mesh: device mesh.
      bar: progress bar over texts, which is closed at the end.

    Returns:
      Tree of NumPy arrays [N, ...], or the `RaggedVectors` of token vectors, the same on every process if the results
      of `compute` are; None if N is 0.
    """
    results, waiting = None, collections.deque[tuple[np.ndarray, Any]]()

    def fetch() -> None:
        nonlocal results
        indices, batch = waiting.popleft()
        results = store_batch(results, bar.total, indices, batch)
        bar.update(len(indices))

    with ticking(bar):
        for indices, rows, inputs in prepared:
            batch = compute(to_global(inputs, mesh, rows))
            jax.tree.map(lambda part: part.copy_to_host_async(), batch)
            waiting.append((indices, batch))
            if len(waiting) > IN_FLIGHT:
                fetch()
        while waiting:
            fetch()
    return RaggedVectors.of(results) if isinstance(results, list) else results


def store_batch(results: Any, count: int, indices: np.ndarray, batch: Any) -> Any:
    """Writes a batch at `indices` of results [count, ...], or of a list of token vectors; allocates them if None."""
    if isinstance(batch, TokenVectors):
        results = [None] * count if results is None else results
        values, mask = jax.device_get((batch.values, batch.mask))
        for row, index in enumerate(indices):
            results[index] = jax.tree.map(lambda part: part[row][mask[row]], values)  # noqa: B023
        return results
    if results is None:
        results = jax.tree.map(lambda part: np.empty((count, *part.shape[1:]), part.dtype), batch)
    for whole, part in zip(jax.tree.leaves(results), jax.tree.leaves(batch), strict=True):
        whole[indices] = np.asarray(part)[: len(indices)]
    return results
