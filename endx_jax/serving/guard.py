"""Who is let in: middleware that looks at a request's headers before anything is read or worked out."""

import hmac

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from endx_jax.serving.errors import Refusal, error_response
from endx_jax.serving.settings import ServingSettings

# What is there for everyone: nothing of the index.
PUBLIC = ("/", "/healthz", "/readyz")
PUBLIC_FOLDER = "/static/"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

# All that a page of ours needs comes from this server; nothing may frame it.
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Guard:
    """Asks for the token, refuses what other sites' pages can send from a browser here, and adds security headers."""

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
            return await error_response(refusal)(scope, receive, with_headers)
        await self._app(scope, receive, with_headers)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        if self._settings.loopback_only and _host(headers.get("host", "")) not in LOOPBACK:
            raise Refusal(421, f"this server is asked for as {' or '.join(LOOPBACK)} only", code="wrong_host")
        if self._token is not None and path not in PUBLIC and not path.startswith(PUBLIC_FOLDER):
            shown = headers.get("authorization", "").encode()
            if not hmac.compare_digest(shown, self._token):
                message = "a token is needed: Authorization: Bearer TOKEN" if not shown else "this is not the token"
                raise Refusal(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        # A page of another site may send forms and plain text here unasked; for JSON a browser asks first, in vain.
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "a body must be JSON, and say so: Content-Type: application/json", code="content_type")


def _host(header: str) -> str:
    """The name or address in a Host header, without its port."""
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0].lower()
