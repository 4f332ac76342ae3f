"""The ASGI application: API, page, probes and metrics behind the middleware."""

import asyncio
import contextlib
import functools
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import tqdm
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

import endx_jax
from endx_jax.parallel.console import showing_progress
from endx_jax.serving.api import make_api
from endx_jax.serving.batching import MOST_CHARACTERS, Batcher
from endx_jax.serving.errors import handle_errors
from endx_jax.serving.middleware import Guard, Measured, Telemetry
from endx_jax.serving.service import Preparation, Result, Service, Work
from endx_jax.serving.settings import ServingSettings

PAGE = pathlib.Path(__file__).parent / "page"
DEFAULT = ServingSettings()


def make_app(
    service: Service, settings: ServingSettings = DEFAULT, *, when_ready: Callable[[], None] = lambda: None
) -> FastAPI:
    """Makes the application.

    Args:
      service: service with a model and an index, used by this application only.
      settings: limits and access.
      when_ready: called once all programs are compiled and the server accepts requests.
    """
    telemetry = Telemetry(waiting=lambda: batcher.requests, documents=lambda: len(service.search))
    limits = settings.limits
    batcher = Batcher[Work, Result](
        service.run, most_cost=MOST_CHARACTERS, most_requests=limits.max_waiting, seen=telemetry.batch
    )

    warm_up = WarmUp(service.preparations())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.preparing = asyncio.create_task(batcher.prepare(warm_up.steps()))
        app.state.preparing.add_done_callback(lambda task: when_ready() if batcher.ready else None)
        yield
        app.state.preparing.cancel()
        batcher.close()

    # FastAPI's documentation pages load scripts from other sites: only openapi.json is kept.
    # Behind a proxy, starlette's redirects would lead to the server's own address, without TLS.
    app = FastAPI(title="endx_jax", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.version = endx_jax.__version__
    app.state.max_seconds, app.state.stop = limits.max_seconds, batcher.stop
    handle_errors(app)
    # The middleware that is added last sees a request first.
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=limits.max_body)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Measured, telemetry=telemetry)
    app.include_router(make_api(service, batcher, limits))

    @app.get("/healthz", include_in_schema=False)
    async def alive() -> Response:
        return JSONResponse({"status": "alive"})

    @app.get("/readyz", include_in_schema=False)
    async def ready() -> Response:
        if batcher.ready:
            return JSONResponse({"status": "ready"})
        if app.state.preparing.done():  # it failed: raise its error, so that it is logged
            app.state.preparing.result()
        return JSONResponse({"status": "warming up", **warm_up.progress()}, 503, {"Retry-After": "1"})

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(telemetry.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    app.openapi = functools.partial(described, app.openapi, limits.max_k, service)  # type: ignore[method-assign]
    app.mount("/static", StaticFiles(directory=PAGE))
    return app


def described(openapi: Callable[[], dict], max_k: int, service: Service) -> dict:
    """Returns the description of the API, with the limits of a server."""
    schemas = openapi()["components"]["schemas"]
    schemas["SearchRequest"]["properties"]["k"]["anyOf"][0]["maximum"] = max_k
    schemas["EmbeddingsRequest"]["properties"]["dimensions"]["anyOf"][0]["maximum"] = service.model.width
    return openapi()


class WarmUp:
    """Preparations, with their progress on the terminal and for `/readyz`."""

    def __init__(self, preparations: Sequence[Preparation]):
        self._preparations = preparations
        self._step, self._doing, self._start = 0, "", time.monotonic()

    def steps(self) -> Iterator[Callable[[], object]]:
        """Yields the functions to run, and updates the progress when the next one is requested."""
        total = len(self._preparations)
        with tqdm.tqdm(total=total, desc="getting ready", disable=not showing_progress(), leave=False) as bar:
            for step, (doing, run) in enumerate(self._preparations, start=1):
                self._step, self._doing = step, doing
                bar.set_postfix_str(doing)
                yield run
                bar.update()

    def progress(self) -> dict[str, str | int | float]:
        """Returns the number of the current step, the number of steps, its description, and seconds since the start."""
        seconds = round(time.monotonic() - self._start, 1)
        return {"step": self._step, "steps": len(self._preparations), "doing": self._doing, "seconds": seconds}
