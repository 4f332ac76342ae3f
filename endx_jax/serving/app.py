"""The application: the API, the page, and what watches over them."""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

import endx_jax
from endx_jax.serving.api import make_api
from endx_jax.serving.batching import Batcher
from endx_jax.serving.body import WholeBody
from endx_jax.serving.dispatch import MOST_CHARACTERS
from endx_jax.serving.errors import handle_errors
from endx_jax.serving.guard import Guard
from endx_jax.serving.service import Result, Service
from endx_jax.serving.settings import ServingSettings
from endx_jax.serving.telemetry import Measured, Telemetry
from endx_jax.serving.works import Work

PAGE = pathlib.Path(__file__).parent / "page"
DEFAULT = ServingSettings()


def make_app(
    service: Service, settings: ServingSettings = DEFAULT, *, when_ready: Callable[[], None] = lambda: None
) -> FastAPI:
    """Makes the application.

    Args:
      service: a model and an index; from now on they are the application's own.
      settings: limits, and who is let in.
      when_ready: is called when everything is compiled, and questions are answered.
    """
    telemetry = Telemetry(waiting=lambda: batcher.requests, documents=lambda: len(service.search))
    limits = settings.limits
    batcher = Batcher[Work, Result](
        service.run, most_cost=MOST_CHARACTERS, most_requests=limits.max_waiting, seen=telemetry.batch
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.preparing = asyncio.create_task(batcher.prepare(service.preparations()))
        app.state.preparing.add_done_callback(lambda task: when_ready() if batcher.ready else None)
        yield
        app.state.preparing.cancel()
        batcher.close()

    # FastAPI's own pages of documentation load scripts from elsewhere: only openapi.json is kept.
    app = FastAPI(title="endx_jax", version=endx_jax.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    handle_errors(app)
    # The last that is added sees a request first.
    app.add_middleware(WholeBody, limits=limits)
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
        if app.state.preparing.done():  # it failed: its error is raised here, and logged
            app.state.preparing.result()
        return JSONResponse({"status": "warming up"}, 503, {"Retry-After": "1"})

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(telemetry.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    app.mount("/static", StaticFiles(directory=PAGE))
    return app
