"""Bodies of JSON, read by a parser that is strict: no lone surrogates, which no file could hold, and no NaN."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute


class JSONRequest(Request):
    """A request whose JSON is read by orjson; its errors are those of the standard library."""

    async def json(self) -> Any:
        """The body."""
        return orjson.loads(await self.body())


class JSONRoute(APIRoute):
    """A route for them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI asks for."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JSONRequest(request.scope, request.receive))

        return handle_json
