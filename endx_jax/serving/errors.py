"""Error responses in the format of OpenAI's API."""

import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Mount

from endx_jax.errors import DiskFull, EndxError, InUse, ReadOnly

log = logging.getLogger(__name__)

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "unavailable_error"}
# Messages for pydantic's error types whose own messages use Python terms.
WORDS = {
    "model_attributes_type": "should be an object",
    "dict_type": "should be an object",
    "extra_forbidden": "there is no such field; /openapi.json lists the fields",
    "missing": "is missing",
    "too_short": "give at least one",
    "string_too_short": "is empty",
}
# nginx's status for a client that disconnected; it appears in metrics only.
CLIENT_GONE = 499


@dataclasses.dataclass(eq=False)
class Refusal(Exception):
    """Exception for a request that is refused.

    Attributes:
      status: HTTP status.
      message: the error and its remedy.
      param: name of the invalid field.
      code: identifier of the kind of error, for programs.
      headers: further headers of the response.
    """

    status: int
    message: str
    _: dataclasses.KW_ONLY
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None


class ClientGone(Exception):
    """Exception for a client that disconnected before its answer was ready."""


def clipped(text: str) -> str:
    """Returns the beginning of a client's text, for a message."""
    return text if len(text) <= 80 else f"{text[:80]}..."


def error_response(refusal: Refusal) -> Response:
    """Returns the response of a refusal."""
    kind = TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return JSONResponse({"error": error}, refusal.status, refusal.headers)


def handle_errors(app: FastAPI) -> None:
    """Registers handlers that convert every exception in `app` to an error response.

    Errors of clients are `Refusal`s. An `EndxError` is a problem of the server or its index, such as a full disk, and
    is logged as one line.
    """

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return error_response(refusal)

    @app.exception_handler(RequestValidationError)
    async def not_understood(request: Request, failure: RequestValidationError) -> Response:
        return error_response(_explained(failure.errors()))

    @app.exception_handler(EndxError)
    async def failed(request: Request, failure: EndxError) -> Response:
        log.error("%s", failure)
        if isinstance(failure, InUse):
            return error_response(Refusal(503, str(failure), code="in_use", headers={"Retry-After": "1"}))
        if isinstance(failure, DiskFull):
            return error_response(Refusal(507, "the server's disk is full: nothing was changed", code="disk_full"))
        status, code = (409, "read_only") if isinstance(failure, ReadOnly) else (500, "failed")
        return error_response(Refusal(status, str(failure), code=code))

    @app.exception_handler(HTTPException)
    async def not_there(request: Request, failure: HTTPException) -> Response:
        message = f"{request.method} {clipped(request.url.path)}: {failure.detail}"
        headers = failure.headers
        if failure.status_code == 405:  # starlette names the methods of one route, and a path may have several
            routes = [route for route in app.routes if not isinstance(route, Mount)]
            scopes = {method: {**request.scope, "method": method} for method in ("GET", "POST", "DELETE")}
            methods = [name for name, scope in scopes.items() if any(r.matches(scope)[0] is Match.FULL for r in routes)]
            headers = {"Allow": ", ".join([*methods, *["HEAD"] * ("GET" in methods)])} if methods else headers
        return error_response(Refusal(failure.status_code, message, headers=headers))

    @app.exception_handler(ClientGone)
    async def gone(request: Request, failure: ClientGone) -> Response:
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(Exception)
    async def broken(request: Request, failure: Exception) -> Response:
        # starlette raises the exception again after this response, and it is logged with its traceback.
        return error_response(Refusal(500, "internal error; the server's log has the details"))


def _explained(errors: Sequence[Mapping[str, Any]]) -> Refusal:
    """Returns a refusal for the first of pydantic's errors."""
    error = errors[0]
    kind, place = error["type"], error["loc"][1:]
    if kind == "json_invalid":
        reason = f"{error['ctx']['error']}, at character {place[-1]}"
        return Refusal(400, f"the body is not JSON: {reason}", code=kind)
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    where = clipped("".join(parts).removeprefix("."))
    words = WORDS.get(kind) or error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    shown = kind not in (*WORDS, "value_error") and isinstance(error["input"], str | int | float | None)
    value = f", not {clipped(json.dumps(error['input']))}" if shown else ""
    return Refusal(422, f"{where or 'the body'}: {words}{value}", param=where or None, code=kind)
