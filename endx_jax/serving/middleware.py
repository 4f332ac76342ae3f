"""Middleware that authorizes requests by their headers."""

import asyncio
import contextlib
import hmac
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endx_jax.serving.errors import Refusal, error_response
from endx_jax.serving.settings import ServingSettings

# Paths that need no token, as they do not disclose anything about the index.
PUBLIC = ("/", "/healthz", "/readyz")
PUBLIC_FOLDER = "/static/"
LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]*)?", re.IGNORECASE)

# The page loads everything from this server and must not be framed.
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

# Seconds in which the body of a refused request is read and discarded.
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

        if scope["method"] == "HEAD":  # the server sends no body
            scope = {**scope, "method": "GET"}
        try:
            self._check(scope["path"], Headers(scope=scope))
        except Refusal as refusal:
            return await refuse(refusal, scope, receive, with_headers)
        await self._app(scope, receive, with_headers)

    def _check(self, path: str, headers: Headers) -> None:
        if self._settings.loopback_only and not LOOPBACK.fullmatch(headers.get("host", "")):
            raise Refusal(421, "the Host header must name localhost or 127.0.0.1 or [::1]", code="wrong_host")
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


async def refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends a refusal at once, and ends it when the body was read or after `LINGER` seconds.

    A connection that is closed with an unread body is reset, and many clients would not see the refusal.
    """

    async def unended(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    await error_response(refusal)(scope, receive, unended)
    with contextlib.suppress(TimeoutError, HTTPException):  # the latter: the body is larger than its limit
        async with asyncio.timeout(LINGER):
            while (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b""})
