"""Middleware that authorizes requests by their headers, then reads their bodies within limits."""

import asyncio
import contextlib
import hmac
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endx_jax.serving.errors import Refusal, error_response
from endx_jax.serving.settings import Limits, ServingSettings

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


class Guard:
    """Middleware that checks the token, refuses cross-site requests of browsers, and adds security headers."""

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

        try:
            self._check(scope["method"], scope["path"], Headers(scope=scope))
        except Refusal as refusal:
            return await refuse_unread(refusal, scope, receive, with_headers)
        await self._app(scope, receive, with_headers)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        if self._settings.loopback_only and not LOOPBACK.fullmatch(headers.get("host", "")):
            raise Refusal(421, "the Host header must name localhost or 127.0.0.1 or [::1]", code="wrong_host")
        if self._token is not None and path not in PUBLIC and not path.startswith(PUBLIC_FOLDER):
            shown = headers.get("authorization", "").encode()
            if not hmac.compare_digest(shown, self._token):
                message = "a token is needed: Authorization: Bearer TOKEN" if not shown else "the token is wrong"
                raise Refusal(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        # A browser lets pages of other sites send forms and plain text without asking; JSON needs a preflight request,
        # which fails here.
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "send JSON with the header Content-Type: application/json", code="content_type")


# Limits on the rest of the body that is read and discarded after a refusal. A connection that is closed with unread
# data is reset, and many clients would not get the response.
LINGER_BYTES, LINGER_SECONDS = 64_000_000, 5.0


class WholeBody:
    """Middleware that passes requests on once their body is complete, and refuses bodies that are too large or slow."""

    def __init__(self, app: ASGIApp, limits: Limits):
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            body = await self._read(Headers(scope=scope), receive)
        except Refusal as refusal:
            return await refuse_unread(refusal, scope, receive, send)
        if body is None:  # the client disconnected
            return None
        coming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def next_message() -> Message:
            return coming.pop() if coming else await receive()

        await self._app(scope, next_message, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """Returns the body; None if the client disconnected."""
        most = self._limits.max_body
        length = headers.get("content-length", "")
        if "transfer-encoding" not in headers and length in ("", "0"):
            return b""
        if length.isdecimal() and int(length) > most:
            raise _too_large(most)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._limits.max_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _too_large(most)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            reason = f"the body did not arrive within {self._limits.max_seconds:g} seconds"
            raise Refusal(408, reason, code="timeout") from None


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"the body is larger than {most} bytes: send less at a time", code="body_too_large")


async def refuse_unread(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuses a request whose body was not read, and closes the connection.

    The response is sent at once. It ends, and the connection is closed, once the client has sent its body or
    `LINGER_BYTES` of it, or after `LINGER_SECONDS`. A client whose body was too slow gets no more time.
    """

    async def unended(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    response = error_response(refusal)
    response.headers["Connection"] = "close"
    await response(scope, receive, unended)
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0 if refusal.status == 408 else LINGER_SECONDS):
            while size < LINGER_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    break
    await send({"type": "http.response.body", "body": b""})
