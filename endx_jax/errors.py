"""Exceptions whose messages are written for users."""

# Characters of a message; longer ones, such as those that quote a damaged file, lose their middle.
MOST_MESSAGE = 2_000


class EndxError(ValueError):
    """User error: bad data, a bad setting, a missing file.

    The message is one line that names the error, its place, and what to do. Command lines print it without a
    traceback and exit with status 2; any other exception is a bug and keeps its traceback.
    """

    def __init__(self, message: str = ""):
        """Takes the message; line breaks in it, such as those of a damaged file, become spaces."""
        line = " ".join(str(message).splitlines())
        if len(line) > MOST_MESSAGE:
            line = f"{line[: MOST_MESSAGE - 505]} ... {line[-500:]}"
        super().__init__(line)


class InUse(EndxError):
    """Error about a file or folder that another process holds or has changed; the same request may work later."""


class DiskFull(EndxError):
    """Error about a full disk or quota; existing files are unchanged."""


# EX_TEMPFAIL of sysexits.h: the exit status that `launch/` has schedulers requeue.
TRY_AGAIN = 75


class RunInterrupted(Exception):
    """Interruption from outside, such as a preempted machine; the same command resumes the run.

    It is not an EndxError, so error handling does not catch it. Command lines print its line and exit with status 75
    (`EX_TEMPFAIL`), which makes schedulers requeue the job.
    """


def nearest(name: str, known) -> str:
    """Returns a phrase with the name in `known` closest to a misspelt `name`, to append to a message; may be empty."""
    import difflib

    close = difflib.get_close_matches(name, [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
