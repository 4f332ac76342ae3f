"""Messages and progress bars of the primary process.

Messages are records of the logger `endx_jax`, of level WARNING if they begin with `warning: `, else INFO. The level
WARNING silences the latter and the progress bars.
"""

import contextlib
import logging
import logging.handlers
import sys
from collections.abc import Iterator

import tqdm

from endx_jax.errors import printable
from endx_jax.files import repeating
from endx_jax.parallel.distributed import is_primary
from endx_jax.uploads import renamed

LOG = logging.getLogger("endx_jax")
LOG.setLevel(LOG.level or logging.INFO)
INTERVAL = 1.0  # seconds between updates of a progress bar while no item is finished, such as during compilation
_silencers: list[None] = []  # one for each context of `silenced` that is open, in any thread


def _shows_messages() -> bool:
    return LOG.isEnabledFor(logging.INFO) and not _silencers


def say(line: str) -> None:
    """Logs a message on the primary process, or prints it on stdout if the program's own logging would not show it.

    Control characters, and characters that stdout can't encode, are printed as escapes.
    """
    level = logging.WARNING if line.startswith("warning: ") else logging.INFO
    if not is_primary() or (level == logging.INFO and not _shows_messages()):
        return
    text = printable(renamed(line))
    # Libraries that are imported add a handler without a level to the root logger.
    shows_all = logging.root.isEnabledFor(logging.INFO)  # by a handler, if there is one
    handlers = [*LOG.handlers, *(handler for handler in logging.root.handlers if handler.level or shows_all)]
    if any(handler.level <= logging.INFO for handler in handlers) or not _shows_messages():
        LOG.log(level, "%s", text)
        return
    if sys.stdout is None:  # of a program without a console
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = text.encode(encoding, "backslashreplace").decode(encoding)
    with tqdm.tqdm.external_write_mode():
        sys.stdout.write(f"{text}\n")  # in one piece, also if the stream has no buffer
        sys.stdout.flush()


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Context without messages and progress bars; warnings are logged. Several may overlap in threads."""
    _silencers.append(None)
    try:
        yield
    finally:
        _silencers.pop()


@contextlib.contextmanager
def gathering() -> Iterator[list[logging.LogRecord]]:
    """Context that collects the package's warnings in a list, to print them in one place; an error logs them all.

    Where messages are silenced, nothing would print the list: warnings are logged at once then.
    """
    collector = logging.handlers.BufferingHandler(capacity=sys.maxsize)
    collector.setLevel(logging.WARNING)
    if _shows_messages():
        LOG.addHandler(collector)
    try:
        yield collector.buffer
    except BaseException:
        LOG.removeHandler(collector)
        for record in collector.buffer:
            LOG.handle(record)
        raise
    finally:
        LOG.removeHandler(collector)


def showing_progress() -> bool:
    """Returns true on the primary process if stderr is a terminal or a notebook: progress bars are shown then."""
    return is_primary() and _shows_messages() and (sys.stderr.isatty() or "ipykernel" in sys.modules)


@contextlib.contextmanager
def ticking(bar: tqdm.tqdm) -> Iterator[tqdm.tqdm]:
    """Context in which a progress bar is redrawn every second; closes the bar at its end."""
    with bar, contextlib.nullcontext() if bar.disable else repeating(bar.refresh, INTERVAL):
        yield bar


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Context that shows the elapsed time of work without countable items; prints `what` if not at a terminal."""
    if not showing_progress():
        say(what)
    with ticking(tqdm.tqdm(desc=what, bar_format="{desc}: {elapsed}", leave=False, disable=not showing_progress())):
        yield
