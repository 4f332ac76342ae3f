"""Cases of a comparison, each in a process of its own, timed in alternation.

The threads and the allocator of one library slow another one down in the same process. `alternate` therefore starts a
process for each case, which imports only the module of that case. One process computes at a time.
"""

import contextlib
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
      start_up: seconds from the start of the process until the object is made.
      first: seconds of the first call, which compiles programs where that is needed.
      seconds: seconds of each timed call.
      results: what each call returned, the first one included.
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


def calls(repeats: int) -> int:
    """Returns the number of times that `alternate` calls each case."""
    return 1 + 2 * repeats


def alternate(cases: Mapping[str, Case], repeats: int) -> dict[str, Timing]:
    """Times all cases in alternation: the first call of each, then `repeats` rounds.

    In a round each case is called twice, and the second call is timed: a system may take memory from a process that
    waits for its turn, and the first call gets it back.
    """
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(Side(case)) for name, case in cases.items()}
        results = {name: [side()] for name, side in sides.items()}
        for _ in range(repeats):
            for name, side in sides.items():
                results[name] += [side(), side()]
    return {
        name: Timing(
            start_up=side.start_up,
            first=results[name][0][0],
            seconds=[seconds for seconds, _ in results[name][2::2]],
            results=[result for _, result in results[name]],
            about=side.about,
        )
        for name, side in sides.items()
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
