"""Console output of the primary process."""

import contextlib
import logging
import sys
from collections.abc import Iterator

import tqdm

from endx_jax.errors import named, printable
from endx_jax.parallel.distributed import is_primary
from endx_jax.progress import ticking


def say(line: str) -> None:
    """Prints a line on the primary process only: see `errors.naming` and `errors.printable`."""
    if is_primary():
        sys.stdout.write(f"{printable(named(line))}\n")  # in one piece, also if the stream has no buffer
        sys.stdout.flush()


@contextlib.contextmanager
def gathering() -> Iterator[list[str]]:
    """Context that collects the package's logged warnings in a list, to print them in one place; an error logs them."""
    lines: list[str] = []
    log, handler = logging.getLogger("endx_jax"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    failed = True
    try:
        yield lines
        failed = False
    finally:
        log.removeHandler(handler)
        for line in lines * failed:
            log.warning("%s", line)


def showing_progress() -> bool:
    """Returns true on the primary process if stderr is a terminal or a notebook: progress bars are shown then."""
    return is_primary() and (sys.stderr.isatty() or "ipykernel" in sys.modules)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Context that shows the elapsed time of work without countable items; prints `what` if not at a terminal."""
    if not showing_progress():
        say(what)
    with ticking(tqdm.tqdm(desc=what, bar_format="{desc}: {elapsed}", leave=False, disable=not showing_progress())):
        yield
