"""Processes of tests: threads that take part in agreements as processes do, and real ones."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax

from endx_jax.parallel import agreement


class Store:
    """Key-value store and barriers of the coordination service, for threads."""

    def __init__(self, count: int):
        self._count, self._values, self._changed = count, {}, threading.Condition()
        self._barriers: dict[str, threading.Barrier] = {}

    def key_value_set(self, key: str, value: str) -> None:
        with self._changed:
            assert key not in self._values, f"{key} is set twice"
            self._values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, timeout=20), f"nobody sets {key}"
            return self._values[key]

    def wait_at_barrier(self, key: str, milliseconds: int) -> None:
        with self._changed:
            barrier = self._barriers.setdefault(key, threading.Barrier(self._count))
        barrier.wait(20)


def as_processes(monkeypatch, function: Callable[[int], Any], count: int = 2) -> list:
    """Calls a function with the index of each process, at once; returns their values, or the EndxErrors they raise."""
    this, store = threading.local(), Store(count)
    with monkeypatch.context() as patch:
        patch.setattr(agreement, "client", lambda: store)
        patch.setattr(agreement, "is_primary", lambda: this.index == 0)
        patch.setattr(agreement, "_key", lambda name: f"{name}/{this.calls.update([name]) or this.calls[name]}")
        patch.setattr(jax.distributed, "is_initialized", lambda: True)
        patch.setattr(jax, "process_index", lambda: this.index)
        patch.setattr(jax, "process_count", lambda: count)

        def act(index: int):
            this.index, this.calls = index, Counter()
            try:
                return function(index)
            except Exception as raised:
                return raised

        with futures.ThreadPoolExecutor(count) as threads:
            return [*threads.map(act, range(count))]
