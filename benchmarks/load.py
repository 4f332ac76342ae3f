"""Load generator: clients that send the next request once the last one is answered, and optional slow clients.

They use sockets directly and parse only the length of a response, because they share the machine with the server.
"""

import asyncio
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np


@dataclasses.dataclass
class Load:
    """Results of all clients.

    Attributes:
      seconds: duration of each request that was answered with 200.
      failures: other statuses, and lost connections.
      span: seconds from the first request to the last response.
      held: lifetime of each connection of a slow client, in seconds.
    """

    seconds: list[float] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    span: float = 0.0
    held: list[float] = dataclasses.field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.seconds) / self.span

    def percentile(self, share: float) -> float:
        """Returns a percentile of the durations, in milliseconds."""
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


class _Slow(asyncio.Protocol):
    """Connection that sends a request and then further bytes from time to time; reads responses only if `reads`."""

    def __init__(self, load: Load, reads: bool):
        self._load, self._reads = load, reads
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport) -> None:
        self._start = time.perf_counter()
        if not self._reads:
            transport.pause_reading()

    def connection_lost(self, failure: Exception | None) -> None:
        self._load.held.append(time.perf_counter() - self._start)
        self.lost.set_result(None)


async def _stay(port: int, load: Load, begin: bytes, more: bytes, every: float, reads: bool) -> None:
    """Opens connections one after another; each stays open until the server closes it."""
    loop = asyncio.get_running_loop()
    while True:
        transport, slow = await loop.create_connection(lambda: _Slow(load, reads), "127.0.0.1", port)
        try:
            transport.write(begin)
            while not slow.lost.done():
                if transport.get_write_buffer_size() < 100_000:
                    transport.write(more)
                await asyncio.wait([slow.lost], timeout=every)
        except OSError:
            await asyncio.sleep(every)
        finally:
            transport.abort()


def put_load_on(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float, slow: int = 0) -> Load:
    """Sends requests to a server on this machine.

    Args:
      port: port of the server.
      path: path of the requests.
      bodies: bodies of the requests, sent in turn.
      clients: number of clients that wait for their responses.
      seconds: duration.
      slow: number of refused clients that send a byte of their body every five seconds, and also of clients that send
        requests without reading responses.
    """
    return asyncio.run(_put_load_on(port, path, bodies, clients, seconds, slow))


async def _put_load_on(port: int, path: str, bodies: Sequence[bytes], clients: int, seconds: float, slow: int) -> Load:
    requests = itertools.cycle([request(port, path, body) for body in bodies])
    load, ending = Load(), asyncio.Event()
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    refused = request(port, path, b" " * 100_000).replace(b"Host: 127.0.0.1", b"Host: elsewhere").rstrip(b" ")
    ask = next(requests)
    beside = [
        asyncio.create_task(_stay(port, load, *case))
        for case in slow * [(refused, b" ", 5.0, True), (ask, ask, 0.02, False)]
    ]
    made = [
        (await loop.create_connection(lambda: _Client(requests, load, ending), "127.0.0.1", port))[1]
        for _ in range(clients)
    ]
    await asyncio.sleep(seconds)
    ending.set()
    if made:
        await asyncio.wait([client.done for client in made], timeout=30)
    load.span = time.perf_counter() - start
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    return load


def request(port: int, path: str, body: bytes) -> bytes:
    """Returns a POST request with JSON."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
