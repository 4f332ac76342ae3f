import contextlib
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from helpers import wait_for
from http_server import Running, until_closed

from endx_jax.serving import middleware
from endx_jax.serving.server import bind
from endx_jax.serving.settings import Limits, ServingSettings

LIMITS = Limits(max_seconds=0.4, max_k=5)  # fewer results than a search without k returns by default
HOST = "Host: 127.0.0.1\r\n"
TOKEN = "Authorization: Bearer right\r\n"
JSON = "Content-Type: application/json\r\n"
QUESTION = b'{"query": "the cat"}'
ASK = f"POST /search HTTP/1.1\r\n{HOST}{TOKEN}{JSON}Content-Length: {len(QUESTION)}\r\n\r\n".encode() + QUESTION
PAGE = f"GET /static/page.js HTTP/1.1\r\n{HOST}\r\n".encode()
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
KEY = "A" * 22 + "=="
CHUNKED = "Transfer-Encoding: chunked"
UPGRADE = f"GET /healthz HTTP/1.1\r\n{HOST}Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\n"


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(middleware, "LINGER", 0.3)


@pytest.fixture(scope="module")
def impatient(service):
    """A server with a token that gives clients little time."""
    running = Running(service, ServingSettings(LIMITS, "right", loopback_only=True))
    yield running
    running.stop()


# What a client sends at once, what it goes on with, and the beginning of what it is answered.
DRIPS = [(f"{length}\r\n", drip) for length, drip in (("Content-Length: 100000", b"0"), (CHUNKED, b"1\r\n0\r\n"))]
CUT_OFF = [
    (f"{head}{length}\r\n".encode(), drip, answer)
    for head, answer in (
        (f"POST /search HTTP/1.1\r\n{HOST}{JSON}", b"401 .*a token is needed"),
        (f"GET /info HTTP/1.1\r\n{HOST}", b"401 "),
        (f"POST /search HTTP/1.1\r\n{HOST}{TOKEN}Content-Type: text/plain\r\n", b"415 "),
        (f"POST /search HTTP/1.1\r\nHost: elsewhere\r\n{TOKEN}{JSON}", b"421 "),
        (f"POST /search HTTP/1.1\r\n{HOST}{TOKEN}{JSON}", b"408 .*did not arrive within 0.4 seconds"),
    )
    for length, drip in DRIPS
]
CUT_OFF += [(begin, drip, b"200 " * bool(begin)) for begin in (b"", ASK) for drip in (b"", b"\r\n", b"X")]  # headers
CUT_OFF += [
    (PREFACE, b"", b"4.."),
    (PREFACE[:18], b"", b"4.."),
    (f"{UPGRADE % 'h2c'}HTTP2-Settings: AAQAAP__\r\n\r\n".encode(), b"", b"200"),
    (f"{UPGRADE % 'websocket'}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n".encode(), b"", b"200"),
    (f"{UPGRADE % 'websocket'}Sec-WebSocket-Version: 13\r\n\r\n".encode(), b"", b"200"),
]


@pytest.mark.parametrize(("begin", "drip", "answer"), CUT_OFF)
def test_a_client_that_is_slow_or_speaks_another_protocol_is_cut_off(impatient, begin, drip, answer):
    with impatient.connect() as connection:
        connection.sendall(begin)
        seconds, received = until_closed(connection, drip)
    assert re.match(b"HTTP/1.1 " * bool(answer) + answer, received, re.DOTALL)
    assert seconds < 10  # of 20 that it would take


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://127.0.0.1/healthz?a=b", 200), ("HTTP://localhost:80?q=a", 200), ("http://evil.com/healthz", 421)],
)
def test_a_target_may_be_a_whole_address_whose_host_counts(served, target, status):
    assert served.get(target, {"Host": "127.0.0.1"})[0] == status


def test_the_length_of_headers_is_limited(serve):
    running = serve(ServingSettings(Limits(max_seconds=60)))
    with running.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(PAGE[:-2] + 200 * (b"X-More: " + b"x" * 992 + b"\r\n"))
        assert until_closed(connection)[1][:12] in (b"", b"HTTP/1.1 431")


def test_a_few_requests_that_are_sent_ahead_are_answered_in_order(impatient):
    with impatient.connect() as connection:
        connection.sendall(ASK + f"GET /nowhere HTTP/1.1\r\n{HOST}{TOKEN}\r\n".encode() + ASK)
        answer = until_closed(connection)[1]
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


def test_a_burst_of_connections_is_taken_while_the_event_loop_is_busy(serve):
    running, done = serve(), threading.Event()
    running.loop.call_soon_threadsafe(done.wait, 60)
    with contextlib.ExitStack() as connections:
        connections.callback(done.set)
        for _ in range(200):
            connections.enter_context(socket.create_connection(("127.0.0.1", running.port), 2))


def test_a_port_can_be_taken_again_as_soon_as_a_server_has_stopped():
    with bind("127.0.0.1", 0) as bound:
        bound.listen()
        with socket.create_connection(address := bound.getsockname()):
            bound.accept()[0].close()  # the side that closes first keeps the port for a minute
    bind(*address).close()


def test_requests_that_outlast_the_grace_period_are_cut_off(serve, gated, caplog):
    running = serve(service=gated, grace=0.3)
    with running.connect() as asked, running.connect() as slow:
        asked.sendall(ASK)
        wait_for(lambda: len(gated.batches) == 1)
        slow.sendall(ASK[:-1])
        start = time.monotonic()
        running.stop()
        assert time.monotonic() - start < 4
        assert until_closed(asked)[1][:12] in (b"", b"HTTP/1.1 500")


def test_requests_that_do_not_end_before_the_grace_period_does_are_refused(serve, gated):
    running = serve(service=gated, refused_after=0.1)
    with running.connect() as computed, running.connect() as waiting:
        for connection in (computed, waiting):
            connection.sendall(ASK)
            wait_for(lambda: len(gated.batches) == 1)
        running.stop()
        for connection in (computed, waiting):
            answer = until_closed(connection)[1]
            assert answer[:12] == b"HTTP/1.1 503"
            assert b"retry-after" in answer
            assert b"the server is stopping" in answer


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/info"])
def test_head_is_answered_as_get_without_a_body(served, path):
    with served.connect() as connection:
        connection.sendall(f"HEAD {path} HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n".encode())
        head, _, body = until_closed(connection)[1].partition(b"\r\n\r\n")
    assert (head[:12], body) == (b"HTTP/1.1 200", b"")


def test_a_signal_during_a_long_step_of_the_warm_up_ends_the_process(trained_workdir):
    script = textwrap.dedent(
        """
        import sys, time
        from endx_jax.cli import serve
        from endx_jax.serving.service import Service

        def step():
            print("begun", flush=True)
            time.sleep(60)

        Service.preparations = lambda self: [("a long one", step)]
        serve.main([f"--workdir={sys.argv[1]}", "--port=0"])
        """
    )
    command = [sys.executable, "-c", script, str(trained_workdir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        try:
            assert b"begun\n" in iter(program.stdout.readline, b"")
            start = time.monotonic()
            program.send_signal(signal.SIGTERM)
            assert program.communicate(timeout=30) == (b"stopped\n", b"")
            assert time.monotonic() - start < 10
        finally:
            program.kill()
    assert program.returncode == 0
