"""A request's body, read whole before anything looks at it: of bounded size, and in bounded time."""

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endx_jax.serving.errors import Refusal, error_response
from endx_jax.serving.settings import Limits

# Of what is sent in spite of a refusal, so much more is thrown away, for at most so long: were the connection closed at
# once, many a client would never see why.
LINGER_BYTES, LINGER_SECONDS = 64_000_000, 5.0


class WholeBody:
    """Middleware that hands on requests when their body is there, and refuses bodies that are too large or too slow."""

    def __init__(self, app: ASGIApp, limits: Limits):
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            body = await self._read(Headers(scope=scope), receive)
        except Refusal as refusal:
            return await _refuse(refusal, scope, receive, send)
        if body is None:  # the client is gone
            return None
        coming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def next_message() -> Message:
            return coming.pop() if coming else await receive()

        await self._app(scope, next_message, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The body; None where the client hung up."""
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
            reason = f"the body did not come within {self._limits.max_seconds:g} seconds"
            raise Refusal(408, reason, code="timeout", headers={"Connection": "close"}) from None


def _too_large(most: int) -> Refusal:
    message = f"the body is larger than {most} bytes: send less at a time"
    return Refusal(413, message, code="body_too_large", headers={"Connection": "close"})


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the refusal at once, and ends the answer, and with it the connection, when the client has sent enough."""

    async def unended(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    await error_response(refusal)(scope, receive, unended)
    if refusal.status == 413:
        await _throw_away(receive)
    await send({"type": "http.response.body", "body": b""})


async def _throw_away(receive: Receive) -> None:
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while size < LINGER_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return
