"""Exceptions with messages for users."""

MAX_MESSAGE = 2_000  # characters; longer messages, such as quotations of damaged files, are shortened in the middle


class EndxError(ValueError):
    """User error, such as invalid data, an invalid setting or a missing file.

    The message is one line that names the problem, its place and a remedy. Command lines print it without a traceback
    and exit with status 2. All other exceptions are bugs and keep their traceback.
    """

    status = 2

    def __init__(self, message: str = ""):
        """Replaces line breaks in the message by spaces and limits its length."""
        line = " ".join(str(message).splitlines())
        if len(line) > MAX_MESSAGE:
            line = f"{line[: MAX_MESSAGE - 505]} ... {line[-500:]}"
        super().__init__(line)


class InUse(EndxError):
    """Error about a file or folder that another process locks or has changed; the same request may succeed later."""


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


def nearest(name: str, known) -> str:
    """Returns a phrase with the name in `known` that is closest to `name`, to append to a message; empty if none is."""
    import difflib

    lower, bare = {str(k).lower(): str(k) for k in known}, name.lower().lstrip("-")
    # A key without its section, such as `data.path` for `config.data.path`, comes first.
    close = [k for k in lower if k.endswith(f".{bare}")] or difflib.get_close_matches(name.lower(), lower, 1, 0.5)
    return f"; did you mean {lower[close[0]]!r}?" if close else ""
