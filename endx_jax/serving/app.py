"""The ASGI application: API, page, probes and metrics behind the middleware."""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import tqdm
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

import endx_jax
from endx_jax.parallel.console import showing_progress
from endx_jax.serving.api import Server, router
from endx_jax.serving.batching import MOST_CHARACTERS, Batcher
from endx_jax.serving.errors import handle_errors
from endx_jax.serving.middleware import Guard, Measured, Telemetry
from endx_jax.serving.service import Job, Preparation, Result, Service
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
      when_ready: called once the server accepts requests.
    """
    telemetry = Telemetry(waiting=lambda: batcher.requests, documents=lambda: len(service.index))
    limits = settings.limits
    batcher = Batcher[Job, Result](
        service.run, most_cost=MOST_CHARACTERS, most_requests=limits.max_waiting, seen=telemetry.batch
    )

    async def prepare() -> None:
        await batcher.prepare(_shown(service.preparations()))
        when_ready()
        await batcher.prepare(service.later_preparations())

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.preparing = asyncio.create_task(prepare())
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
    app.state.server = Server(service, batcher, limits)
    app.include_router(router)

    @app.get("/healthz", include_in_schema=False)
    async def alive() -> Response:
        return JSONResponse({"status": "alive"})

    @app.get("/readyz", include_in_schema=False)
    async def ready() -> Response:
        if batcher.ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "warming up"}, 503, {"Retry-After": "1"})

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(telemetry.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    app.mount("/static", StaticFiles(directory=PAGE))
    return app


def _shown(preparations: Sequence[Preparation]) -> Iterator[Callable[[], object]]:
    """Yields the functions to run, with a progress bar."""
    off = not showing_progress()
    bar = tqdm.tqdm(preparations, desc="getting ready", disable=off, leave=False, mininterval=0)
    for description, run in bar:
        bar.set_postfix_str(description)
        yield run
