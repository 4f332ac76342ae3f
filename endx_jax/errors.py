"""Exceptions with messages for users."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar

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


class DiskFull(EndxError):
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


_NAMES: ContextVar[Mapping[str, str]] = ContextVar("names", default={})  # noqa: B039  # never changed in place


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    """Context of work at `where`, which precedes the place and the message of an EndxError that is raised in it."""
    try:
        yield
    except EndxError as failure:
        failure.where = ": ".join(filter(None, (where, failure.where)))
        raise


@contextlib.contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Context in which messages use other names, such as a command line's flags in place of settings and arguments.

    Messages of the library name settings and arguments as in Python, such as `train.steps` of `endx_jax.train`.

    Args:
      names: names by those that they replace, in an EndxError raised in the context and in arguments of `named`; the
        names of contexts around this one are replaced too.
    """
    before = _NAMES.set({**names, **_NAMES.get(), **names})  # the first of several that match counts
    try:
        yield
    except EndxError as failure:
        failure.rename(named)
        raise
    finally:
        _NAMES.reset(before)


def named(message: str) -> str:
    """Replaces names in a message by the flags of `naming`, except in quoted texts, which users wrote.

    A name that ends in `=` matches only before a value.
    """
    names = _NAMES.get()
    alternatives = "|".join(re.escape(name) + ("" if name.endswith("=") else r"(?!\w|\.\w)") for name in names)
    quoted = r"""(?<!\w)(["']).*?\1(?!\w)"""
    pattern = rf"{quoted}|(?<![\w./-])(?:{alternatives})"
    return re.sub(pattern, lambda match: names.get(match[0], match[0]), message) if names else message


def nearest(name: str, known) -> str:
    """Returns a phrase with the name in `known` that is closest to `name`, to append to a message; empty if none is.

    Dotted names, such as `train.steps`, are compared by their last part: the same word, a part of it, or its initials,
    such as `lr` for `learning_rate`. Two names are returned if they are about equally close.
    """
    import difflib

    if inside := next((key for key in map(str, known) if key.startswith(f"{name}.")), ""):
        return f", which is a section; name a setting in it, such as {inside!r}"

    def ratio(a: str, b: str) -> float:
        return difflib.SequenceMatcher(None, a, b).ratio()

    *sections, bare = name.lower().lstrip("-").removeprefix("config.").split(".")
    section, near = "".join(sections[-1:]), 0.1 if sections else 0.25

    def likeness(key: str) -> float:
        *places, last = key.lower().split(".")
        word = bare if places or last == bare else name.lower()
        parts = re.split("[-_/]+", last)
        if word == last or (word[1:] and word == "".join(part[:1] for part in parts)):
            like = 1.1
        elif word and ({*re.split("[-_/]+", word)} <= {*parts} or last.startswith(word)):
            like = 0.9
        else:
            like = ratio(word, last) * (1 if word[:1] == last[:1] else 0.7)
        inside = ratio(section, "".join(places[-1:]))
        return like + 0.5 * inside if like >= (0.8 if inside < 1 and places else 0.6 if last[:1] == "-" else 0.5) else 0

    likely = sorted(map(str, known), key=likeness, reverse=True)[:2]
    close = [key for key in likely if likeness(key) > max(0, likeness(likely[0]) - near)]
    return f"; did you mean {' or '.join(map(repr, close if '.' in close[0] else close[:1]))}?" if close else ""
