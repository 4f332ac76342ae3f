"""Tests of the HTTP server."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from http_server import wait_for

from endx_jax.serving import middleware, server
from endx_jax.serving.settings import Limits, ServingSettings

LIMITS = Limits(max_seconds=0.4)
HOST = "Host: 127.0.0.1\r\n"
TOKEN = "Authorization: Bearer right\r\n"
JSON = "Content-Type: application/json\r\n"
QUESTION = b'{"query": "the cat"}'
ASK = f"POST /search HTTP/1.1\r\n{HOST}{JSON}Content-Length: {len(QUESTION)}\r\n\r\n".encode() + QUESTION
CHUNKED = f"POST /search HTTP/1.1\r\n{HOST}{JSON}Transfer-Encoding: chunked\r\n\r\n".encode()
PAGE = f"GET /static/page.js HTTP/1.1\r\n{HOST}\r\n".encode()


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(middleware, "LINGER_SECONDS", 0.3)
    monkeypatch.setattr(server, "KEPT_OPEN", 0.5)


def held(connection, drip=b"0"):
    """Sends a byte every 20 ms until the server closes the connection; the seconds that took, and what came."""
    start, parts = time.monotonic(), []
    connection.settimeout(0.02)
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - start < 5:
            connection.sendall(drip)
            with contextlib.suppress(TimeoutError):
                parts.append(connection.recv(65536))
                if not parts[-1]:
                    break
    return time.monotonic() - start, b"".join(parts)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"POST /search HTTP/1.1\r\n{HOST}{JSON}", 401),
        (f"GET /info HTTP/1.1\r\n{HOST}", 401),
        (f"POST /search HTTP/1.1\r\n{HOST}{TOKEN}Content-Type: text/plain\r\n", 415),
        (f"POST /search HTTP/1.1\r\nHost: elsewhere\r\n{TOKEN}{JSON}", 421),
    ],
)
@pytest.mark.parametrize("length", ["Content-Length: 100000\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_refused_client_that_drips_its_body_is_cut_off(serve, head, status, length):
    running = serve(ServingSettings(LIMITS, "right", loopback_only=True))
    with running.connect() as connection:
        connection.sendall(f"{head}{length}\r\n".encode())
        seconds, answer = held(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert seconds < 2
    wait_for(lambda: not running.connections)


def test_a_refusal_without_a_body_closes_at_once(serve, monkeypatch):
    monkeypatch.setattr(middleware, "LINGER_SECONDS", 60.0)
    running = serve(ServingSettings(LIMITS, "right"))
    with running.connect() as connection:
        connection.sendall(f"GET /info HTTP/1.1\r\n{HOST}\r\n".encode())
        start, answer = time.monotonic(), b""
        while part := connection.recv(65536):
            answer += part
        assert time.monotonic() - start < 2
    assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("drip", [b"", b"\r\n"])
def test_the_time_limit_between_requests_is_not_extended_by_blank_lines(serve, drip):
    running = serve(ServingSettings(LIMITS))
    with running.connect() as connection:
        connection.sendall(ASK)
        seconds, answer = held(connection, drip)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert 0.3 < seconds < 2


@pytest.mark.parametrize(
    "endless", [b"5;" + b"x" * 9_000, b"0\r\n" + b"X-Trailer: " + b"x" * 9_000, b"\r\n" * 4_500], ids=lambda b: b[:5]
)
def test_bytes_that_add_nothing_to_a_body_are_limited(serve, endless):
    running = serve(ServingSettings(Limits(max_seconds=60)))
    with running.connect() as connection:
        begin = (
            ASK if endless[:1] == b"\r" else f"POST /search HTTP/1.1\r\n{HOST}{JSON}Transfer-Encoding: chunked\r\n\r\n"
        )
        connection.sendall(begin if isinstance(begin, bytes) else begin.encode())
        wait_for(lambda: len(running.connections) == 1)
        sent = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(endless if not sent else endless[-4_500:])
                sent += 4_500
                time.sleep(0.002)
    assert sent < 400_000
    wait_for(lambda: not running.connections)


@pytest.mark.parametrize("line", [b"X-More: " + b"x" * 992 + b"\r\n", b"X:\r\n"], ids=["long", "short"])
def test_headers_are_limited_where_their_last_bytes_complete_them(serve, line):
    running = serve(ServingSettings(Limits(max_seconds=60)))
    with running.connect() as connection:
        lines = line * (70_000 // len(line))
        connection.sendall(PAGE[:-2] + lines[:60_000])
        wait_for(lambda: sum(protocol._unused_bytes for protocol in running.connections) > 60_000)
        with contextlib.suppress(ConnectionError):
            connection.sendall(lines[60_000:] + b"\r\n")
        assert held(connection, b"")[1] == b""


def test_a_client_that_does_not_read_is_cut_off_although_it_goes_on_asking(serve, monkeypatch):
    monkeypatch.setattr(server, "KEPT_OPEN", 20.0)
    running = serve(ServingSettings(Limits(max_seconds=1)))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", running.port))
        connection.sendall(PAGE)
        wait_for(lambda: len(running.connections) == 1)
        (held,) = running.connections
        end = time.monotonic() + 20
        with contextlib.suppress(ConnectionError):
            while running.connections and time.monotonic() < end:
                if len(held.pipeline) < 2:
                    connection.sendall(PAGE)
                time.sleep(0.002)
        assert not running.connections


def test_requests_that_are_sent_ahead_are_few(serve, gated):
    running = serve(service=gated)
    most = 0
    with running.connect() as connection:
        connection.sendall(ASK)
        wait_for(lambda: len(gated.batches) == 1)
        (held,) = running.connections
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(PAGE * 500)
                most = max(most, len(held.pipeline))
                time.sleep(0.001)
        wait_for(lambda: not running.connections)
    assert most <= server.MOST_PIPELINED
    assert not held.pipeline


def test_a_few_requests_that_are_sent_ahead_are_answered_in_order(serve):
    running = serve(ServingSettings(LIMITS))
    with running.connect() as connection:
        connection.sendall(ASK + f"GET /nowhere HTTP/1.1\r\n{HOST}\r\n".encode() + ASK)
        answer = held(connection, b"")[1]
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]


def test_slow_clients_starve_nobody(serve, monkeypatch):
    """Every second come thirty clients that are refused and drip on, and ten that ask too much ahead."""
    monkeypatch.setattr(server, "KEPT_OPEN", 5.0)
    running = serve(ServingSettings(Limits(max_connections=40, max_seconds=0.5)))
    statuses = []

    async def slow(request):
        _, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=256)
        with contextlib.closing(writer):
            while not writer.is_closing():
                writer.write(request)
                await asyncio.sleep(0.05)

    async def ask():
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        for _ in range(20):
            writer.write(ASK)
            head = await reader.readuntil(b"\r\n\r\n")
            statuses.append(head.split(b" ")[1])
            assert statuses[-1] == b"200"
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
            await asyncio.sleep(0.1)
        writer.close()

    async def all_of_them():
        clients = [asyncio.create_task(ask()) for _ in range(3)]
        drip = f"POST /search HTTP/1.1\r\nHost: elsewhere\r\n{JSON}Content-Length: 100000\r\n\r\n".encode()
        tasks = []
        while not all(client.done() for client in clients):
            tasks += [asyncio.create_task(slow(request)) for request in (drip, drip, drip, 20 * PAGE)]
            await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*clients)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(asyncio.wait_for(all_of_them(), 30))
    assert statuses == [b"200"] * 60


HEAD = "POST /{} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


def test_requests_that_outlast_the_grace_period_are_refused(serve, gated, monkeypatch, caplog):
    monkeypatch.setattr(server, "GRACE", 0.3)
    running = serve(service=gated)
    statuses = []
    documents = {"documents": [{"text": "x"}]}
    clients = [
        threading.Thread(target=lambda call=call: statuses.append(running.post(*call)))
        for call in (("/search", QUESTION), ("/search", QUESTION), ("/documents", documents))
    ]
    for client in clients:
        client.start()
    wait_for(lambda: running.metric("endx_waiting_requests") == 3)
    with running.connect() as slow:
        slow.sendall(HEAD.format("search", 100).encode() + b"{")
        wait_for(lambda: any(connection.cycle for connection in list(running.connections)))
        start = time.monotonic()
        running.stop()
        assert time.monotonic() - start < 4
    for client in clients:
        client.join(10)
    assert [status for status, _ in statuses] == [503] * 3
    assert {content["error"]["code"] for _, content in statuses} == {"stopping"}
    assert "Traceback" not in caplog.text


def test_a_signal_during_a_long_step_of_the_warm_up_ends_the_process(tmp_path):
    script = textwrap.dedent(
        """
        import contextlib, time, types
        from endx_jax.cli import serve
        from endx_jax.serving.service import Preparation

        def step():
            print("begun", flush=True)
            time.sleep(60)

        search = types.SimpleNamespace(index=types.SimpleNamespace(held=contextlib.nullcontext))
        service = types.SimpleNamespace(
            model=None, search=search, scores={}, run=list, preparations=lambda: [Preparation("a long one", step)]
        )
        serve._service = lambda arguments: service
        serve.main(["--index=any", "--port=0"])
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        try:
            assert program.stdout.readline() == b"begun\n"
            start = time.monotonic()
            program.send_signal(signal.SIGTERM)
            assert program.communicate(timeout=30) == (b"stopped\n", b"")
            assert time.monotonic() - start < 10
        finally:
            program.kill()
    assert program.returncode == 0
