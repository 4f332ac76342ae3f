"""All processes meet before JAX joins them, so that who is missing can be named.

JAX waits for every process, too; but when one does not come, it aborts the others without a word on which. Process 0
takes the roll on the very port that JAX's coordinator will have right after: nothing else has to be open.
"""

import contextlib
import json
import os
import socket
import time

from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.parallel.environment import Place

ENCODING = "utf-8"
GREETING_SECONDS = 2.0  # that a connection to process 0 may take to say who it is
GRACE_SECONDS = 30.0  # beyond the time-out, in which process 0 is to say that it has passed
PAUSE_SECONDS = 0.2  # between attempts to reach process 0


def roll_call(place: Place, timeout: float) -> None:
    """Returns once all processes are there.

    Args:
      place: of this one.
      timeout: seconds to wait for the last of them.

    Raises:
      RunInterrupted: when some are missing, with their numbers, on all that came.
      EndxError: when two say that they are the same, they disagree on their number, or the port is taken.
    """
    if place.index == 0:
        _call(place, timeout)
    else:
        _answer(place, timeout)


def _call(place: Place, timeout: float) -> None:
    """Process 0's part: waits for the others, then tells all of them how it went."""
    deadline = time.monotonic() + timeout
    present: dict[int, tuple[str, socket.socket]] = {}
    failure: Exception | None = None
    with contextlib.closing(_listen(place)) as server, contextlib.ExitStack() as connections:
        while failure is None and len(present) < place.count - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                failure = RunInterrupted(_missing(place, present, timeout))
                break
            server.settimeout(min(left, 1.0))
            with contextlib.suppress(TimeoutError):
                connection = connections.enter_context(server.accept()[0])
                if greeting := _greeting(connection):
                    index, count, host = greeting
                    failure = _objection(place, index, count, host, present)
                    if failure:
                        _tell(connection, failure)
                    else:
                        present[index] = (host, connection)
            # One that was stopped, or started again, while the others were awaited.
            present = {index: entry for index, entry in present.items() if not _is_closed(entry[1])}
        for _, connection in present.values():
            _tell(connection, failure)
    if failure:
        raise failure


def _greeting(connection: socket.socket) -> tuple[int, int, str] | None:
    """Number, number of processes, and host of who has just come; None where it is not one of ours."""
    try:
        connection.settimeout(GREETING_SECONDS)
        greeting = _receive(connection)
        return int(greeting["index"]), int(greeting["count"]), str(greeting["host"])
    except (OSError, ValueError, KeyError, TypeError):
        connection.close()  # a port scan, or a left-over of the last run
        return None


def _objection(place: Place, index: int, count: int, host: str, present: dict) -> EndxError | None:
    """What is wrong with who has just come, if anything."""
    if count != place.count:
        return EndxError(f"process {index} on {host} expects {count} processes, process 0 expects {place.count}")
    if index == 0 or (index in present and not _is_closed(present[index][1])):
        other = present[index][0] if index else _here()
        return EndxError(f"there are two processes {index}, on {other} and on {host}: give each a number of its own")
    return None


def _tell(connection: socket.socket, failure: Exception | None) -> None:
    """Says how the roll call went."""
    answer = {"failure": str(failure), "again": isinstance(failure, RunInterrupted)} if failure else {}
    with contextlib.suppress(OSError):
        _send(connection, answer)
        connection.recv(1)  # until the other side has closed, which leaves the port free at once


def _answer(place: Place, timeout: float) -> None:
    """What the others do: say who they are, and wait for what process 0 says."""
    host, _, port = place.address.rpartition(":")
    deadline = time.monotonic() + timeout
    problem = "nobody listens there"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), max(1.0, deadline - time.monotonic())) as line:
                _send(line, {"index": place.index, "count": place.count, "host": _here()})
                line.settimeout(timeout + GRACE_SECONDS)
                answer = _receive(line)
        except (OSError, ValueError) as failure:
            problem = getattr(failure, "strerror", None) or problem
            time.sleep(PAUSE_SECONDS)
            continue
        if answer:
            raise (RunInterrupted if answer["again"] else EndxError)(answer["failure"])
        return
    raise RunInterrupted(
        f"process 0 of {place.count} did not answer at {place.address} within {timeout:.0f} s ({problem}): see its log "
        f"and whether process {place.index} on {_here()} can reach that address"
    )


def _missing(place: Place, present: dict, timeout: float) -> str:
    """The line that names who did not come."""
    missing = [index for index in range(1, place.count) if index not in present]
    names = [f"{index} on {place.hosts[index]}" if place.hosts else str(index) for index in missing]
    here = [f"0 on {_here()}", *(f"{index} on {host}" for index, (host, _) in sorted(present.items()))]
    noun, verb = ("process", "has") if len(missing) == 1 else ("processes", "have")
    return (
        f"{noun} {_shortened(names)} of {place.count} {verb} not joined process 0 at {place.address} within "
        f"{timeout:.0f} s (here: {_shortened(here)}): see their logs, then start all again"
    )


def _shortened(names: list[str], most: int = 8) -> str:
    """The first of many names, and how many more there are."""
    shown = names[:most] + ([f"{len(names) - most} more"] if len(names) > most else [])
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def _listen(place: Place) -> socket.socket:
    port = int(place.address.rpartition(":")[2])
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=place.count)
        return socket.create_server(("", port), backlog=place.count)
    except OSError as failure:
        reason = os.strerror(failure.errno or 0)
        raise EndxError(
            f"process 0 can't listen on port {port} ({reason}): another run may have it; choose another port"
        ) from None


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other side has gone; it says nothing after its greeting."""
    try:
        connection.setblocking(False)
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(GREETING_SECONDS)


def _send(connection: socket.socket, message: dict) -> None:
    connection.sendall((json.dumps(message) + "\n").encode(ENCODING))


def _receive(connection: socket.socket) -> dict:
    with connection.makefile("r", encoding=ENCODING) as lines:
        return json.loads(lines.readline(65536))


def _here() -> str:
    return f"{socket.gethostname()} (pid {os.getpid()})"
