"""Middleware: authorization of requests by their headers, and metrics of requests for Prometheus."""

import asyncio
import contextlib
import hmac
import re
import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endx_jax.serving.errors import Refusal, error_response
from endx_jax.serving.service import Job, to_encode
from endx_jax.serving.settings import ServingSettings, is_loopback

# Paths that need no token, as they do not disclose anything about the index.
PUBLIC = ("/", "/healthz", "/readyz")
PUBLIC_FOLDER = "/static/"
HOST = re.compile(r"(?:\[(.*:.*)\]|([^:]*))(?::[0-9]*)?")  # an IPv6 address, or another name, and a port

# The page loads everything from this server and must not be framed.
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

# Seconds in which the rest of a body is read and discarded after a response that did not need it; they count in the
# request's time.
LINGER = 5.0


class Guard:
    """Middleware that checks the token and the Host header, and adds security headers."""

    def __init__(self, app: ASGIApp, settings: ServingSettings):
        self._app, self._settings = app, settings
        self._token = None if settings.token is None else f"Bearer {settings.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers[name] = value
            await send(message)

        receive, send_last = _read_before_end(receive, with_headers)
        try:
            self._check(scope["path"], Headers(scope=scope))
        except Refusal as refusal:
            return await error_response(refusal)(scope, receive, send_last)
        await self._app(scope, receive, send_last)

    def _check(self, path: str, headers: Headers) -> None:
        host = HOST.fullmatch(headers.get("host", ""))
        if self._settings.loopback_only and not (host and is_loopback(host[1] or host[2])):
            named = "localhost or a loopback address, such as 127.0.0.1 or [::1]"
            raise Refusal(421, f"the Host header must name {named}", code="wrong_host")
        if self._token is not None and path not in PUBLIC and not path.startswith(PUBLIC_FOLDER):
            shown = headers.get("authorization", "").encode()
            if not hmac.compare_digest(shown, self._token):
                message = "a token is needed: Authorization: Bearer TOKEN" if not shown else "the token is wrong"
                raise Refusal(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may read another length
            raise Refusal(
                400, "Content-Length and Transfer-Encoding exclude each other", headers={"Connection": "close"}
            )
        length, most = headers.get("content-length", "0"), self._settings.limits.max_body
        if length.isdecimal() and int(length) > most:
            raise Refusal(413, f"the body is larger than {most} bytes: send less at a time", code="body_too_large")


def _read_before_end(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Returns functions that end a response only when the request's body was read, or `LINGER` seconds later.

    The response is sent at once. A connection that is closed while its client still sends the body is reset, and many
    clients would not see the response.
    """
    unread = True  # where there is no body, the first message says so

    async def receive_noted() -> Message:
        nonlocal unread
        message = await receive()
        unread = message.get("more_body", False)
        return message

    async def send_last(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False) or not unread:
            return await send(message)
        await send({**message, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while unread:
                    await receive_noted()
        await send({"type": "http.response.body", "body": b""})

    return receive_noted, send_last


SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64)
# Clients may send any word as a method, and each would add a series; other methods are counted as `other`.
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")


class Telemetry:
    """Metrics of one server, in a separate registry."""

    def __init__(self, waiting: Callable[[], int], documents: Callable[[], int]):
        """Registers the metrics.

        Args:
          waiting: returns the number of requests that wait or are computed.
          documents: returns the number of documents in the index.
        """
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "endx_requests", "requests by status", ("route", "method", "status"), registry=registry
        )
        self._seconds = Histogram(
            "endx_request_seconds",
            "from headers to the end of the response",
            ("route",),
            buckets=SECONDS,
            registry=registry,
        )
        self._batch = Histogram("endx_batch_requests", "requests computed together", buckets=SIZES, registry=registry)
        self._texts = Counter("endx_texts", "texts encoded", ("side",), registry=registry)
        Gauge("endx_waiting_requests", "requests that wait or are computed", registry=registry).set_function(waiting)
        Gauge("endx_documents", "documents in the index", registry=registry).set_function(documents)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts a request that has ended."""
        self._requests.labels(route, method if method in METHODS else "other", status).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, jobs: Sequence[Job]) -> None:
        """Counts a batch."""
        self._batch.observe(len(jobs))
        for side, texts in map(to_encode, jobs):
            self._texts.labels(side).inc(len(texts))


class Measured:
    """Middleware that counts and times all requests."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry):
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status, method = time.perf_counter(), 500, scope["method"]
        if method == "HEAD":  # the server sends no body
            scope = {**scope, "method": "GET"}

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            # The path of the route and not of the request, which can be anything; refused requests have no route.
            route = getattr(scope.get("route"), "path", "none")
            self._telemetry.request(route, method, status, time.perf_counter() - start)
