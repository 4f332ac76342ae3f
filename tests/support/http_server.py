"""Real servers, in threads of this process, and how to ask them."""

import asyncio
import contextlib
import http.client
import json
import shutil
import socket
import threading
import time

import pytest
from helpers import wait_for

from endx_jax import load
from endx_jax.experiment import workdir as workdirs
from endx_jax.index.index import Index
from endx_jax.inference import low_latency
from endx_jax.serving.app import make_app
from endx_jax.serving.server import bind, new_event_loop, serve
from endx_jax.serving.service import Service
from endx_jax.serving.settings import ServingSettings

JSON = {"Content-Type": "application/json"}


def service_of(workdir, folder):
    """The model of a workdir and a copy of its index in a folder, which tests may change, with few programs."""
    model = load(workdir)
    return few_programs(model, Index(shutil.copy(workdir / workdirs.INDEX, folder), model))


def few_programs(model, index) -> Service:
    """A service that compiles few programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(low_latency.PROGRAMS, "cpu", low_latency.Programs(rows=(4, 1), tokens=1024, call=24))
        return Service(model, index)


def unprepared(model, index, **more) -> Service:
    """A service that compiles no programs but those that are asked for."""
    service = Service(model, index, **more)
    service.preparations = service.later_preparations = list
    return service


class Running:
    """A server of a `service` that is up, at `url`: 127.0.0.1 and `port`; its event loop `loop` runs in `thread`."""

    def __init__(self, service, settings=ServingSettings(), ready=True, **times):  # noqa: B008
        bound = bind("127.0.0.1", 0)
        self.port, self.service = bound.getsockname()[1], service
        self.url = f"http://127.0.0.1:{self.port}"
        self.loop, self._stopped = new_event_loop(), asyncio.Event()
        serving = serve(make_app(service, settings), bound, settings.limits, self._stopped.wait, **times)
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=[serving])
        self.thread.start()
        wait_for(lambda: self._answers() >= (200 if ready else 100), 60)

    def _answers(self):
        """The status of the server's readiness; 0 before it listens."""
        with contextlib.suppress(ConnectionRefusedError):
            status, _ = self.get("/readyz")
            return status if status == 200 else 100
        return 0

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self, method, path, body=None, headers=None):
        """Status, and the answer: JSON, or text where it is none."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
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
        self.loop.call_soon_threadsafe(self._stopped.set)
        self.thread.join(60)
        assert not self.thread.is_alive()


def until_closed(connection, drip=b"") -> tuple[float, bytes]:
    """Sends a byte every 20 ms until the server closes the connection; the seconds that took, and what came."""
    start, parts = time.monotonic(), []
    connection.settimeout(0.02)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - start < 20:
            connection.sendall(drip)
            with contextlib.suppress(TimeoutError):
                parts.append(connection.recv(65536))
                if not parts[-1]:
                    break
    return time.monotonic() - start, b"".join(parts)
