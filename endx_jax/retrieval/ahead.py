"""Work that is done ahead, in a thread, while what it is for is still busy; and results that are fetched late."""

import collections
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_END = object()


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
