"""Progress bar whose elapsed time is updated while no item is completed, such as during a compilation."""

import contextlib
import threading
from collections.abc import Iterator

import tqdm

# Seconds between two drawings.
INTERVAL = 1.0


@contextlib.contextmanager
def ticking(bar: tqdm.tqdm) -> Iterator[tqdm.tqdm]:
    """Redraws a bar every second until the block ends, then closes it; ignores a disabled bar."""
    ended = threading.Event()

    def draw() -> None:
        while not ended.wait(INTERVAL):
            bar.refresh()

    thread = threading.Thread(target=draw, name="progress", daemon=True)
    with bar:
        if not bar.disable:
            thread.start()
        try:
            yield bar
        finally:
            ended.set()
            if not bar.disable:
                thread.join()
