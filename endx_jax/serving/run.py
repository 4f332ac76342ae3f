"""Runs an application on a socket until it is told to stop."""

import contextlib
import signal
import socket

import uvicorn
from fastapi import FastAPI

from endx_jax.errors import EndxError
from endx_jax.serving.protocol import bounded_protocol
from endx_jax.serving.settings import Limits

# Seconds that requests have to end when the server is stopped, and idle connections are kept open.
GRACE = 10
KEPT_OPEN = 30


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address for itself, and does not listen yet.

    Raises:
      EndxError: the address can't be had.
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
        raise EndxError(f"{host} port {port} can't be had ({reason}): choose another --host or --port") from None
    return bound


def make_server(app: FastAPI, limits: Limits) -> uvicorn.Server:
    """What runs an application within limits: `run(sockets=[...])` returns when `should_exit` is set."""
    config = uvicorn.Config(
        app,
        http=bounded_protocol(limits.max_seconds),
        ws="none",
        log_config=None,  # what goes wrong is for the program's own log, which is standard error where it has none
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=limits.max_connections,
        timeout_keep_alive=KEPT_OPEN,
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config)


def serve(app: FastAPI, bound: socket.socket, limits: Limits) -> None:
    """Serves until SIGTERM or SIGINT: then nothing new is taken, what is there is finished, and this returns."""
    # uvicorn sends itself the signal that stopped it once more when it is done; to be stopped is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    make_server(app, limits).run(sockets=[bound])
