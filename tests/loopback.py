"""HTTP server on the loopback for tests, which runs in a thread inside a `with` statement."""

import http.server
import threading


class LoopbackServer:
    """Server of a handler's responses at `address`."""

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]):
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *failure):
        self._server.shutdown()
        self._server.server_close()
