"""uvicorn's HTTP protocol with the timeouts that it lacks: for headers that never end, and answers nobody takes."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes of a request before its body: those that a browser sends are a few hundred.
MOST_HEADERS = 64_000


def bounded_protocol(seconds: float) -> type[HttpToolsProtocol]:
    """The protocol for connections whose clients have so many seconds for headers, and to take what was sent them."""

    class BoundedProtocol(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _headers_size: int | None = 0  # None while there is no request whose headers are read

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._start_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._headers_size is not None:
                self._headers_size += len(data)
                if self._headers_size > MOST_HEADERS:
                    self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._headers_size = 0
            self._start_timer()

        def on_headers_complete(self) -> None:
            self._headers_size = None
            self._stop_timer()
            super().on_headers_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._start_timer()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_timer()

        def _start_timer(self) -> None:
            self._stop_timer()
            self._timer = self.loop.call_later(seconds, self.transport.abort)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return BoundedProtocol
