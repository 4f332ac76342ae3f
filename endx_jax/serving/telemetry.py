"""Metrics for Prometheus."""

import time
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endx_jax.serving.service import Work, to_encode

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

    def batch(self, works: Sequence[Work]) -> None:
        """Counts a batch."""
        self._batch.observe(len(works))
        for side, texts in map(to_encode, works):
            self._texts.labels(side).inc(len(texts))


class Measured:
    """Middleware that counts and times all requests."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry):
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status = time.perf_counter(), 500

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
            self._telemetry.request(route, scope["method"], status, time.perf_counter() - start)
