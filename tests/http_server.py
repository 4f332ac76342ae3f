"""Real servers, in threads of this process, and how to ask them."""

import contextlib
import http.client
import json
import socket
import threading
import time

from endx_jax.serving.app import make_app
from endx_jax.serving.server import bind, make_server
from endx_jax.serving.settings import ServingSettings

JSON = {"Content-Type": "application/json"}


class Running:
    """A server that is up.

    Attributes:
      port: it listens at 127.0.0.1.
      url: its address.
      service: what it serves.
      connections: uvicorn's protocols of the open connections.
    """

    def __init__(self, service, settings=ServingSettings(), ready=True):  # noqa: B008
        bound = bind("127.0.0.1", 0)
        self.port, self.service = bound.getsockname()[1], service
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = make_server(make_app(service, settings), settings.limits)
        self.connections = self._server.server_state.connections
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [bound]})
        self._thread.start()
        wait_for(lambda: self._server.started)
        if ready:
            wait_for(lambda: self.get("/readyz")[0] == 200, 60)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def ask(self, method, path, body=None, headers=None):
        """Status, and the answer: JSON, or text where it is none."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            content = answer.read().decode()
            is_json = answer.headers.get("Content-Type") == "application/json"
            return answer.status, json.loads(content) if is_json else content, answer.headers

    def get(self, path, headers=None):
        return self.ask("GET", path, headers=headers)[:2]

    def post(self, path, content, headers=JSON):
        """Posts an object as JSON, or bytes as they are."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.ask("POST", path, body, headers)[:2]

    def metric(self, line):
        """The value of a line of /metrics; 0 before there is one."""
        found = [text for text in self.get("/metrics")[1].splitlines() if text.startswith(line + " ")]
        return float(found[0].split()[-1]) if found else 0.0

    def stop(self):
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
