"""HTTP server on uvicorn: limits on the time and memory of connections, and shutdown by signals."""

import asyncio
import contextlib
import signal
import socket
from collections import deque
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from endx_jax.errors import EndxError
from endx_jax.serving.settings import Limits

# Bytes that a client may send without completing the headers of a request or extending its body; a browser's headers
# take a few hundred. The limit also covers trailers, chunk extensions and blank lines.
MOST_HEADERS = 64_000
# Requests that a client may send before the answer to the first one.
MOST_PIPELINED = 16
# Seconds that a connection stays open between an answer and the next request.
KEPT_OPEN = 30


class _Flow(FlowControl):
    """Flow control that does not read on while earlier requests are queued."""

    def __init__(self, transport: asyncio.Transport, queued: deque):
        super().__init__(transport)
        self._queued = queued

    def resume_reading(self) -> None:
        if not self._queued:
            super().resume_reading()


def bounded_protocol(seconds: float) -> type[HttpToolsProtocol]:
    """Returns a protocol class that closes the connections of slow clients.

    Two timers bound every connection; received bytes do not reset them. `_request_timer` runs while no request is
    processed. It allows `KEPT_OPEN` seconds between a response and the next request, `seconds` from the start of a
    connection or the first byte of a request to the end of its headers, and `seconds` for the last bytes before the
    connection closes. `_answer_timer` allows `seconds` while the client receives data more slowly than it is produced.
    `middleware.WholeBody` bounds the time of a body.

    Args:
      seconds: time limit for sending headers, and for receiving a response.
    """

    class BoundedProtocol(HttpToolsProtocol):
        _request_timer: asyncio.TimerHandle | None = None
        _answer_timer: asyncio.TimerHandle | None = None
        _running: RequestResponseCycle | None = None  # the request that is worked on; `cycle` is the latest one
        _unused_bytes = 0  # received since the last complete headers or part of a body

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.flow = _Flow(transport, self.pipeline)
            self._expect_request(seconds)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop(self._request_timer, self._answer_timer)
            self.pipeline.clear()
            if self._running is not None:
                self._running.disconnected = True
                self._running.message_event.set()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._unused_bytes += len(data)
            super().data_received(data)
            if self._unused_bytes > MOST_HEADERS:
                self.transport.abort()
            elif self.transport.is_closing():  # uvicorn refused malformed data
                self._expect_request(seconds)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self.cycle is None or self.cycle.response_complete:
                self._expect_request(seconds)

        def on_headers_complete(self) -> None:
            self._unused_bytes = 0
            # The last bytes received may have exceeded the limit and completed the headers at once.
            length = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
            if length > MOST_HEADERS or len(self.pipeline) >= MOST_PIPELINED:
                self.transport.abort()
            if self.transport.is_closing():
                return
            self._stop(self._request_timer)
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._unused_bytes = 0
            super().on_body(body)

        def on_response_complete(self) -> None:
            idle = not self.pipeline
            super().on_response_complete()
            if self.transport.is_closing():
                self._expect_request(seconds)
            elif idle:
                self._expect_request(KEPT_OPEN)

        def _start_asgi_task(self, cycle, app) -> None:
            self._running = cycle
            super()._start_asgi_task(cycle, app)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._answer_timer = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop(self._answer_timer)

        def _expect_request(self, within: float) -> None:
            """Closes the connection unless the headers of a request are complete within `within` seconds."""
            self._stop(self._request_timer)
            self._request_timer = self.loop.call_later(within, self.transport.abort)

        def _stop(self, *timers: asyncio.TimerHandle | None) -> None:
            for timer in timers:
                if timer is not None:
                    timer.cancel()

    return BoundedProtocol


# When the server stops: seconds for requests to end, and then for refusals to reach the clients. The process should end
# within ten seconds.
GRACE, FAREWELL = 8, 0.5


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to the address and does not listen yet.

    Raises:
      EndxError: the address is in use or does not exist.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with contextlib.ExitStack() as until_bound:
            bound = until_bound.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            until_bound.pop_all()
    except (OSError, OverflowError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise EndxError(f"{host} port {port} can't be bound ({reason}): choose another --host or --port") from None
    return bound


class Server(uvicorn.Server):
    """uvicorn's server; refuses requests that outlast `GRACE` at shutdown, whose tasks uvicorn would cancel."""

    def __init__(self, config: uvicorn.Config, give_up: Callable[[], None]):
        """Stores uvicorn's settings and a function that refuses all requests."""
        super().__init__(config)
        self._give_up = give_up

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for requests, refuses those that are left with 503, and closes all connections."""
        ending = asyncio.create_task(self._end_requests())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_requests(self) -> None:
        await asyncio.sleep(GRACE)
        self._give_up()
        await asyncio.sleep(FAREWELL)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def make_server(app: FastAPI, limits: Limits) -> Server:
    """Returns a server with limits on connections; its `run(sockets=[...])` returns once `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http=bounded_protocol(limits.max_seconds),
        ws="none",
        log_config=None,  # warnings go to the program's own log, or to standard error if it has none
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=limits.max_connections,
        timeout_keep_alive=KEPT_OPEN,
        timeout_graceful_shutdown=GRACE + 1,
    )
    return Server(config, app.state.batcher.give_up)


def serve(app: FastAPI, bound: socket.socket, limits: Limits) -> None:
    """Serves until SIGTERM or SIGINT; then requests under way have `GRACE` seconds to end, and this returns.

    It does not wait for the running batch, whose thread may still run.
    """
    # After shutdown, uvicorn raises the signal that stopped it again. Ignore it, so that the exit status is 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    make_server(app, limits).run(sockets=[bound])
