"""Progress bars whose elapsed time is updated while no item is finished, such as during compilation."""

import contextlib
import threading
from collections.abc import Iterator

import tqdm

INTERVAL = 1.0  # seconds between updates


@contextlib.contextmanager
def ticking(bar: tqdm.tqdm) -> Iterator[tqdm.tqdm]:
    """Context in which a progress bar is redrawn every second; closes the bar at its end."""
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
