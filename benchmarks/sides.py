"""Cases of a comparison, each in processes of its own, timed in alternation.

The threads and the allocator of one library slow another one down in the same process, and a process that waits while
others compute loses memory and caches. `alternate` therefore starts a process for each case and round, which imports
only the module of that case, and ends it before the next one. One process exists at a time.
"""

import dataclasses
import importlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import common

CALLS = 4  # of a process; the first one is not among the timed ones


@dataclasses.dataclass(frozen=True)
class Case:
    """A callable object that a process makes and then calls, without arguments, once for each timing.

    Attributes:
      module: module of this folder or package that defines `name`.
      name: function or class that makes the object. `object.about`, where it exists, is sent back once.
      arguments: its positional arguments.
    """

    module: str
    name: str
    arguments: tuple = ()


@dataclasses.dataclass
class Timing:
    """Measurements of a case.

    Attributes:
      start_up: seconds from the start of a process until the object is made; median of the rounds.
      first: seconds of the first call, which compiles programs where that is needed; median of the rounds.
      seconds: seconds of each later call, in all rounds.
      results: what each call returned, the first ones included.
      about: `object.about`, or None.
    """

    start_up: float
    first: float
    seconds: list[float]
    results: list
    about: Any

    @property
    def median(self) -> float:
        """Median of `seconds`."""
        return common.median(self.seconds)


class Side:
    """Process of a case, spoken to in pickles over its standard streams."""

    def __init__(self, case: Case):
        """Starts the process and makes the object."""
        start = time.perf_counter()
        command = [sys.executable, __file__, case.module, case.name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.about = self._ask(case.arguments)
        self.start_up = time.perf_counter() - start

    def __call__(self) -> tuple[float, Any]:
        """Calls the object; returns the seconds and what it returned."""
        return self._ask(None)

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_) -> None:
        self._process.communicate()

    def _ask(self, message):
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (BrokenPipeError, EOFError):
            raise SystemExit(f"a process of the comparison ended with status {self._process.wait()}") from None


def alternate(cases: Mapping[str, Case], repeats: int) -> dict[str, Timing]:
    """Times all cases in alternation: in each of `repeats` rounds, `CALLS` calls of each in a new process."""
    sides: dict[str, list[Side]] = {name: [] for name in cases}
    calls: dict[str, list[list[tuple[float, Any]]]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            with Side(case) as side:
                sides[name].append(side)
                calls[name].append([side() for _ in range(CALLS)])
    return {
        name: Timing(
            start_up=common.median(side.start_up for side in sides[name]),
            first=common.median(first for (first, _), *_ in rounds),
            seconds=[seconds for _, *later in rounds for seconds, _ in later],
            results=[result for round_ in rounds for _, result in round_],
            about=sides[name][0].about,
        )
        for name, rounds in calls.items()
    }


def main(module: str, name: str) -> None:
    """Makes the object of a case and calls it for each message, in the process that `Side` started."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that what a library prints is no reply

    def reply(value) -> None:
        pickle.dump(value, replies)
        replies.flush()

    case = getattr(importlib.import_module(module), name)(*pickle.load(sys.stdin.buffer))
    reply(getattr(case, "about", None))
    while sys.stdin.buffer.peek():
        pickle.load(sys.stdin.buffer)
        start = common.clock()
        result = case()
        reply((common.clock() - start, result))


if __name__ == "__main__":
    main(*sys.argv[1:])
