"""Exceptions whose messages are written for users."""

# Characters of a message; longer ones, such as those that quote a damaged file, lose their middle.
MOST_MESSAGE = 2_000


class EndxError(ValueError):
    """User error: bad data, a bad setting, a missing file.

    The message is one line that names what is wrong, where, and what to do. Command lines print it without a
    traceback and exit with status 2; anything else that escapes is a bug of ours and keeps its traceback.
    """

    def __init__(self, message: str = ""):
        """Takes the message; line breaks in it, such as those of a damaged file, become spaces."""
        line = " ".join(str(message).splitlines())
        if len(line) > MOST_MESSAGE:
            line = f"{line[: MOST_MESSAGE - 505]} ... {line[-500:]}"
        super().__init__(line)


class InUse(EndxError):
    """A file or folder that another process holds, or changed in the meantime; the request itself may be right."""


class DiskFull(EndxError):
    """A disk or a quota is full; what was there before is unchanged."""


# EX_TEMPFAIL of sysexits.h: the exit status that `launch/` has schedulers requeue.
TRY_AGAIN = 75


class RunInterrupted(Exception):
    """An end that is nobody's mistake, such as a machine taken away: the same command, given again, goes on.

    It is no mistake, so what deals with mistakes lets it pass. Command lines print the one line and exit with status 75
    (`EX_TEMPFAIL`), by which schedulers know to requeue.
    """


def nearest(name: str, known) -> str:
    """The closest of `known` to a misspelt `name`, as a phrase to append to a message; empty where none is close."""
    import difflib

    close = difflib.get_close_matches(name, [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
