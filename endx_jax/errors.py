"""Exceptions with messages for users."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator

MAX_MESSAGE = 2_000  # characters; longer messages, such as quotations of damaged files, are shortened in the middle

# Control characters that terminals interpret, such as the beginning of an escape sequence; not tab and line feed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    r"""Returns a text with its control characters as escapes, such as `\x1b`, to be printed on a terminal."""
    return _CONTROL.sub(lambda control: ascii(control[0])[1:-1], text)


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun, such as `1 row`, `2,000 rows` and `2 queries`."""
    plural = re.sub("y$", "ie", noun) + "s"
    return f"{count:,} {noun if count == 1 else plural}"


def install(extra: str) -> str:
    """Returns the command that installs an extra of this package, which is not on PyPI, as README.md gives it."""
    return f'pip install -e ".[{extra}]" in the checkout of endx_jax'


class EndxError(ValueError):
    """User error, such as invalid data, an invalid setting or a missing file.

    The message is one line that names the problem, its place and a remedy. Command lines print it without a traceback
    and exit with status 2. All other exceptions are bugs and keep their traceback.

    Attributes:
      where: place that the message does not name, such as a setting; the caller that knows it sets it: see `located`.
    """

    status = 2
    where = ""

    def __init__(self, message: str = ""):
        """Takes the message without `where`."""
        super().__init__(str(message))

    def rename(self, replace: Callable[[str], str]) -> None:
        """Replaces names in `where` and in the message."""
        self.where, self.args = replace(self.where), tuple(map(replace, self.args))

    def __str__(self) -> str:
        """Returns `where` and the message as one line of limited length, with escapes for control characters."""
        line = printable(" ".join(": ".join(filter(None, (self.where, *self.args))).splitlines()))
        return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 505]} ... {line[-500:]}"


class InUse(EndxError):
    """Error about a file or folder that another process locks or has changed; the same request may succeed later."""


class ReadOnly(EndxError):
    """Error about a change to an index that allows none: its file is read-only, or a copy of one in a bucket."""


class NotWritable(EndxError):
    """Error about a file that can't be written."""


class DiskFull(NotWritable):
    """Error about a full disk or quota; existing files are unchanged."""


TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h; the files in `launch/` run the command again after this exit status
INTERRUPTED = 130  # exit status after Ctrl-C


class RunInterrupted(Exception):
    """Interruption that is not a user error, such as a preempted machine; running the same command again resumes.

    It is not an `EndxError`, so that handlers of user errors do not catch it. Command lines print the message and exit
    with status 75 (`TRY_AGAIN`).
    """

    status = TRY_AGAIN


class Disagreement(Exception):
    """Error about processes of one run that hold different parameters."""

    status = 70  # EX_SOFTWARE of sysexits.h; the command is not run again


def first_line(failure: BaseException) -> str:
    """Returns the first line of another library's exception, at most 500 characters; its type if it has no message."""
    return next(iter(str(failure).strip().splitlines()), type(failure).__name__)[:500]


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    """Context of work at `where`, which precedes the place and the message of an EndxError that is raised in it."""
    try:
        yield
    except EndxError as failure:
        failure.where = ": ".join(filter(None, (where, failure.where)))
        raise


def nearest(name: str, known: Iterable[object]) -> str:
    """Returns a phrase with the one or two names in `known` that are closest to `name`, to append to a message.

    Dotted names, such as `train.steps`, are compared by their last part. The phrase is empty if no name is close.
    """
    import difflib

    def last(key: str) -> str:
        return re.split(r"\.(?=[a-z])", key.lower())[-1].lstrip("-").replace("-", "_")

    names = [*map(str, known)]
    section = f".{name.lstrip('-')}."
    if inside := next((key for key in names if section in f".{key.lstrip('-')}"), ""):
        return f", which is a section; name a setting in it, such as {inside!r}"
    close = difflib.get_close_matches(last(name), dict.fromkeys(map(last, names)), n=2, cutoff=0.7)
    found = [difflib.get_close_matches(name, [key for key in names if last(key) == word], 1, 0)[0] for word in close]
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
