"""Refusals: one shape for all, that of OpenAI's API, with a message that says what was wrong."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from endx_jax.errors import EndxError

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "unavailable_error"}
# What pydantic would say in the words of Python programmers, by type.
WORDS = {
    "model_attributes_type": "should be an object",
    "dict_type": "should be an object",
    "extra_forbidden": "there is no such field",
    "missing": "is missing",
    "too_short": "give one at least",
    "string_too_short": "is empty",
}
# A status of nginx's, for the log: the client is gone, and nobody gets it.
CLIENT_GONE = 499


class Refusal(Exception):
    """A request that is not served.

    Attributes:
      status: of HTTP.
      message: what was wrong, and what would be right.
      param: the field that it was about.
      code: a word for programs.
      headers: to go with it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers


class ClientGone(Exception):
    """The client hung up before its answer was there."""


def error_response(refusal: Refusal) -> Response:
    """The answer that says so."""
    kind = TYPES.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "server_error")
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return JSONResponse({"error": error}, refusal.status, refusal.headers)


def handle_errors(app: FastAPI) -> None:
    """Makes all that can go wrong in `app` an answer of that shape."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return error_response(refusal)

    @app.exception_handler(RequestValidationError)
    async def not_understood(request: Request, failure: RequestValidationError) -> Response:
        return error_response(_explained(failure.errors()))

    @app.exception_handler(EndxError)
    async def mistaken(request: Request, mistake: EndxError) -> Response:
        return error_response(Refusal(422, str(mistake)))

    @app.exception_handler(HTTPException)
    async def not_there(request: Request, failure: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {failure.detail}"
        return error_response(Refusal(failure.status_code, message, headers=failure.headers))

    @app.exception_handler(ClientGone)
    async def gone(request: Request, failure: ClientGone) -> Response:
        return Response(status_code=CLIENT_GONE)

    @app.exception_handler(Exception)
    async def broken(request: Request, failure: Exception) -> Response:
        # It is logged with its traceback too: starlette raises it again when this is sent.
        return error_response(Refusal(500, "the server failed to work this out; its log says why"))


def _explained(errors: Sequence[Mapping[str, Any]]) -> Refusal:
    """The first of pydantic's complaints, in words."""
    error = errors[0]
    kind, place = error["type"], error["loc"][1:]
    if kind == "json_invalid":
        reason = f"{error['ctx']['error']}, at character {place[-1]}"
        return Refusal(400, f"the body is not JSON: {reason}", code=kind)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    words = WORDS.get(kind) or error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    shown = kind not in WORDS and isinstance(error["input"], str | int | float | None)
    found = f", not {json.dumps(error['input'])[:80]}" if shown else ""
    return Refusal(422, f"{where or 'the body'}: {words}{found}", param=where or None, code=kind)
