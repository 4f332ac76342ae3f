"""HTTP server: hypercorn, with limits for slow clients and shutdown by signals."""

import asyncio
import contextlib
import logging
import re
import signal
import socket
from collections.abc import Awaitable, Callable

import h11
import hypercorn.asyncio
from fastapi import FastAPI
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol

from endx_jax.errors import EndxError
from endx_jax.serving.settings import Limits

# Bytes of the headers of a request; a browser's take a few hundred.
MOST_HEADERS = 64_000
# Seconds for requests to end when the server stops. The process should end within ten seconds.
GRACE = 8.0
# Seconds after which those that have not ended are answered with 503.
REFUSED_AFTER = 6.0


async def _keep_protocol(*_: object) -> None:
    """Keeps HTTP/1.1: limits do not apply to HTTP/2 without TLS, which hypercorn has no setting to refuse."""


_create_stream = H11Protocol._create_stream


async def _as_origin(self: H11Protocol, request: h11.Request) -> None:
    """Answers a request for WebSockets as HTTP, as its connection could stay open, and takes `http://HOST/PATH`."""
    parts = re.fullmatch(rb"(?:(?i:https?://([^/?]*))/?)?(.*)", request.target)
    assert parts is not None  # h11 refuses line breaks, and all else matches
    host, path = parts.groups()
    headers = [(name, host if host and name == b"host" else v) for name, v in request.headers if name != b"upgrade"]
    target, version = path if host is None else b"/" + path, request.http_version
    await _create_stream(self, h11.Request(method=request.method, target=target, headers=headers, http_version=version))


H11Protocol._check_protocol = _keep_protocol  # type: ignore[assignment, method-assign]
H11Protocol._create_stream = _as_origin  # type: ignore[method-assign]


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to the address and does not listen yet.

    Raises:
      EndxError: the address is in use or does not exist.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        with contextlib.ExitStack() as until_bound:
            bound = until_bound.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            until_bound.pop_all()
    except (OSError, OverflowError, UnicodeError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise EndxError(f"{host} port {port} can't be bound ({reason}): choose another --host or --port") from None
    return bound


async def serve(
    app: FastAPI,
    bound: socket.socket,
    limits: Limits,
    until: Callable[[], Awaitable[object]] | None = None,
    *,
    grace: float = GRACE,
    refused_after: float = REFUSED_AFTER,
) -> None:
    """Serves until `until` returns, or else until SIGTERM or SIGINT; requests under way then have `grace` seconds.

    Takes over the socket. It does not wait for the running batch, whose thread may still run.

    Raises:
      Exception: a preparation failed that requests need; it is raised as it is.
    """
    until = until or _signalled()  # before the application starts, whose warm-up a signal may end
    log, failed = logging.getLogger(__name__), list[BaseException]()
    log.setLevel(logging.WARNING)  # the verb says where the server runs

    async def stopping() -> None:
        stopped = asyncio.ensure_future(until())

        def report(preparing: asyncio.Task) -> None:
            failure = None if preparing.cancelled() else preparing.exception()
            if failure and app.state.server.batcher.ready:
                bug = None if isinstance(failure, EndxError) else failure
                log.error("preparation failed; programs are compiled when first needed: %s", failure, exc_info=bug)
            elif failure:
                failed.append(failure)
                stopped.cancel()

        app.state.preparing.add_done_callback(report)
        await asyncio.wait([stopped])
        asyncio.get_running_loop().call_later(refused_after, app.state.stop)

    config = Config.from_mapping(
        bind=f"fd://{bound.detach()}",
        keep_alive_timeout=limits.max_seconds,  # from the end of a response, or a new connection, to complete headers
        h11_max_incomplete_size=MOST_HEADERS,
        graceful_timeout=grace,
        backlog=2048,  # connections beyond it wait for seconds; hypercorn's default is 100
        include_server_header=False,
        errorlog=log,
    )
    await hypercorn.asyncio.serve(app, config, shutdown_trigger=stopping, mode="asgi")  # type: ignore[arg-type]
    for failure in failed:
        raise failure


def _signalled() -> Callable[[], Awaitable[object]]:
    """Returns a function that waits for SIGTERM or SIGINT, which are noticed from now on."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(signum, stopped.set)
        except NotImplementedError:  # Windows
            signal.signal(signum, lambda *_: loop.call_soon_threadsafe(stopped.set))
    return stopped.wait


def run_server(app: FastAPI, bound: socket.socket, limits: Limits) -> None:
    """Serves until SIGTERM or SIGINT: see `serve`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(app, bound, limits))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns uvloop's event loop, on Windows asyncio's.

    With asyncio's, from Python 3.12 on, hypercorn waits for requests under way without a limit (its issue 308).
    """
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
