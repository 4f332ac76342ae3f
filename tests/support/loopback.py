"""HTTP server on the loopback for tests, which runs in a thread inside a `with` statement."""

import http.server
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Handler that prints nothing."""

    def log_message(self, *args):
        pass

    def reply(self, data: bytes, status: int = 200, **headers: str):
        """Sends a response; underscores in the names of headers stand for hyphens."""
        self.send_response(status)
        for name, value in {"Content_Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


# Bodies of a login page and of broken proxies.
NO_API = (b"<html>Log in</html>", b"[1, 2]", b"5", b"null", b'"x"', b"{}", b"")


def always(data: bytes, status: int = 200) -> type[Handler]:
    """Returns a handler that sends the same status and body in response to every request."""

    class Always(Handler):
        def do_GET(self):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.reply(data, status, Content_Type="application/json")

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    return Always


class LoopbackServer:
    """Server of a handler's responses at `address`."""

    def __init__(self, handler: type[Handler]):
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()  # seconds to shut down
        return self

    def __exit__(self, *failure):
        self._server.shutdown()
        self._server.server_close()
