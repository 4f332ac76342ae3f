"""HTTP server: hypercorn, with limits for slow clients and shutdown by signals."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable

import hypercorn.asyncio
from fastapi import FastAPI
from hypercorn.config import Config

from endx_jax.errors import EndxError
from endx_jax.serving.settings import Limits

# Bytes of the headers of a request; a browser's take a few hundred.
MOST_HEADERS = 64_000
# Seconds for requests to end when the server stops. The process should end within ten seconds.
GRACE = 8.0


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
    except (OSError, OverflowError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise EndxError(f"{host} port {port} can't be bound ({reason}): choose another --host or --port") from None
    return bound


async def serve(
    app: FastAPI, bound: socket.socket, limits: Limits, until: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Serves until `until` returns, or else until SIGTERM or SIGINT; requests under way then have `GRACE` seconds.

    Takes over the socket. It does not wait for the running batch, whose thread may still run.
    """
    config = Config.from_mapping(
        bind=f"fd://{bound.detach()}",
        keep_alive_timeout=limits.max_seconds,  # from the end of a response, or a new connection, to complete headers
        h11_max_incomplete_size=MOST_HEADERS,
        graceful_timeout=GRACE,
        include_server_header=False,
        errorlog=logging.getLogger(__name__),
    )
    await hypercorn.asyncio.serve(app, config, shutdown_trigger=until, mode="asgi")  # type: ignore[arg-type]


def run(app: FastAPI, bound: socket.socket, limits: Limits) -> None:
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
