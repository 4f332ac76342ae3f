"""What a run says on the screen."""

import sys

from endx_jax.parallel.distributed import is_primary


def say(line: str) -> None:
    """Prints a line, on the primary process only."""
    if is_primary():
        print(line, flush=True)


def showing_progress() -> bool:
    """Whether progress bars are wanted: on the primary process, at a terminal."""
    return is_primary() and sys.stderr.isatty()
