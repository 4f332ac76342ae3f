"""Terminal output of a run."""

import contextlib
import sys
from collections.abc import Iterator

import tqdm

from endx_jax.parallel.distributed import is_primary
from endx_jax.progress import ticking


def say(line: str) -> None:
    """Prints a line, on the primary process only."""
    if is_primary():
        print(line, flush=True)


def showing_progress() -> bool:
    """Returns true if progress bars are shown: on the primary process, at a terminal."""
    return is_primary() and sys.stderr.isatty()


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Shows the elapsed time of work without countable items at a terminal; elsewhere prints one line.

    Args:
      what: the work, such as `compiling 2 programs`.
    """
    if not showing_progress():
        say(what)
    with ticking(tqdm.tqdm(desc=what, bar_format="{desc}: {elapsed}", leave=False, disable=not showing_progress())):
        yield
