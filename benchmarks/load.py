"""Clients for servers that are measured: so many at a time, each of which asks again as soon as it has its answer.

Bare sockets and no parsing beyond an answer's length: on a machine that also runs the server, what the clients take is
missing there.
"""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np


@dataclasses.dataclass
class Load:
    """What a number of clients met with.

    Attributes:
      seconds: of each request that was answered with 200.
      failures: other statuses, and connections that broke.
      span: seconds in all.
    """

    seconds: list[float] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    span: float = 0.0

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.seconds) / self.span

    def percentile(self, share: float) -> float:
        """Milliseconds that so many percent of requests took at most."""
        return float(np.percentile(self.seconds, share) * 1e3)


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, requests: Iterator[bytes], load: Load, ending: asyncio.Event):
        self._requests, self._load, self._ending = requests, load, ending
        self._answer = bytearray()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport) -> None:
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head = self._answer.find(b"\r\n\r\n")
        if head < 0:
            return
        headers = bytes(self._answer[:head]).lower()
        length = int(headers.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self._answer) < head + 4 + length:
            return
        seconds, status = time.perf_counter() - self._start, headers.split(b" ", 2)[1]
        if status == b"200":
            self._load.seconds.append(seconds)
        else:
            self._load.failures.append(status.decode())
        if self._ending.is_set():
            self._transport.close()
        else:
            self._ask()

    def connection_lost(self, failure: Exception | None) -> None:
        if not self._ending.is_set():
            self._load.failures.append(f"connection lost: {failure}")
        self.done.set_result(None)

    def _ask(self) -> None:
        self._answer.clear()
        self._start = time.perf_counter()
        self._transport.write(next(self._requests))


def put_load_on(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Lets clients post bodies, in turn, to a server on this machine for some time."""
    return asyncio.run(_put_load_on(port, path, bodies, clients, seconds))


async def _put_load_on(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float) -> Load:
    requests = itertools.cycle([request(port, path, body) for body in bodies])
    load, ending = Load(), asyncio.Event()
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    made = [
        (await loop.create_connection(lambda: _Client(requests, load, ending), "127.0.0.1", port))[1]
        for _ in range(clients)
    ]
    await asyncio.sleep(seconds)
    ending.set()
    await asyncio.wait([client.done for client in made], timeout=30)
    load.span = time.perf_counter() - start
    return load


def request(port: int, path: str, body: bytes) -> bytes:
    """A POST of JSON."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
