"""Clients that do what they should not: each gets its status, and the server lives on."""

import asyncio
import contextlib
import functools
import io
import json
import threading

import pytest
from helpers import Instead, Terminal, one_line_error, raising, wait_for
from http_server import JSON, few_programs, until_closed

from endx_jax.errors import EndxError
from endx_jax.serving import server
from endx_jax.serving.app import make_app
from endx_jax.serving.settings import Limits, ServingSettings

QUESTION = json.dumps({"query": "where is the cat"}).encode()


def head(running, length, path="/search", method="POST", more=""):
    lines = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{more}"
    return (lines + ("" if length is None else f"Content-Length: {length}\r\n") + "\r\n").encode()


def assert_alive(running):
    assert running.get("/healthz") == (200, {"status": "alive"})
    assert running.post("/search", QUESTION)[0] == 200


def test_a_body_of_ten_megabytes_is_refused_before_it_is_read(served):
    with served.connect() as connection:
        connection.sendall(head(served, 10_000_000))  # and nothing of it
        answer = b""
        while b"bytes" not in answer and (part := connection.recv(65536)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"larger than 4000000 bytes" in answer
    assert_alive(served)
    status, content = served.post("/search", b" " * 10_000_000)
    assert (status, content["error"]["code"]) == (413, "body_too_large")
    assert_alive(served)


@pytest.mark.parametrize(("kind", "status"), [(b"application/json", b"413"), (b"text/plain", b"415")])
def test_bytes_are_counted_where_no_length_is_given(served, kind, status, caplog):
    with served.connect() as connection:
        sent = head(served, None, more="Transfer-Encoding: chunked\r\n")
        connection.sendall(sent.replace(b"application/json", kind))
        chunk = b"%x\r\n" % 100_000 + b" " * 100_000 + b"\r\n"
        for _ in range(200):  # five times the limit
            connection.sendall(chunk)
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 %s " % status)  # it stays open for more requests
    assert_alive(served)
    assert "Error in ASGI" not in caplog.text


def test_bytes_that_are_not_http_are_refused(served):
    with served.connect() as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert until_closed(connection)[1].startswith(b"HTTP/1.1 400 ")
    assert_alive(served)


def test_requests_of_disconnected_clients_are_not_computed(serve, gated):
    running = serve(service=gated)
    with running.connect() as first:
        first.sendall(head(running, len(QUESTION)) + QUESTION)
        wait_for(lambda: len(gated.batches) == 1)
        with running.connect() as second:
            second.sendall(head(running, len(QUESTION)) + QUESTION)
            wait_for(lambda: running.metric("endx_waiting_requests") == 2)
        wait_for(lambda: running.metric("endx_waiting_requests") == 1)
        gated.gate.set()
        assert first.recv(65536).startswith(b"HTTP/1.1 200 ")
    wait_for(lambda: running.metric('endx_requests_total{method="POST",route="/search",status="499"}') == 1)
    assert len(gated.batches) == 1
    assert_alive(running)


def test_a_client_that_disconnects_during_its_body_does_no_harm(served):
    with served.connect() as connection:
        connection.sendall(head(served, 100) + b'{"query"')
    assert_alive(served)


def test_a_full_queue_tells_clients_to_come_again(serve, gated):
    running = serve(ServingSettings(Limits(max_waiting=2)), gated)
    answers = []
    clients = [threading.Thread(target=lambda: answers.append(running.post("/search", QUESTION)[0])) for _ in range(2)]
    for client in clients:
        client.start()
    wait_for(lambda: running.metric("endx_waiting_requests") == 2)
    status, content, headers = running.ask("POST", "/search", QUESTION, JSON)
    assert (status, content["error"]["type"], headers["Retry-After"]) == (429, "rate_limit_error", "1")
    assert running.get("/healthz")[0] == 200
    gated.gate.set()
    for client in clients:
        client.join(10)
    assert answers == [200, 200]
    assert_alive(running)


@pytest.mark.parametrize("screen", [Terminal(), io.StringIO()])
def test_before_it_is_ready_it_is_alive_and_says_when_to_come(serve, gated, screen):
    steps = [("the first", lambda: None), ("the second", lambda: gated.gate.wait(20))]
    gated.preparations = lambda: steps
    with contextlib.redirect_stderr(screen):
        running = serve(service=gated, ready=False)
        assert running.get("/healthz")[0] == 200
        assert running.get("/readyz") == (503, {"status": "warming up"})
        status, content, headers = running.ask("POST", "/search", QUESTION, JSON)
        assert (status, content["error"]["code"], headers["Retry-After"]) == (503, "not_ready", "1")
        gated.gate.set()
        wait_for(lambda: running.get("/readyz")[0] == 200)
    bar = ("getting ready", "0/2", "the first", "1/2", "the second")
    assert [part in screen.getvalue() for part in bar] == [screen.isatty()] * len(bar)


def test_it_answers_while_further_programs_are_compiled(serve, service):
    gate, done = threading.Event(), []
    steps = [lambda: gate.wait(20), lambda: done.append("last")]
    running = serve(service=Instead(service, preparations=list, later_preparations=lambda: steps))
    assert running.post("/search", QUESTION)[0] == 200  # during the first step
    assert not done
    gate.set()
    wait_for(lambda: done)


def test_without_its_default_search_it_ends_and_a_later_failure_is_logged(serve, service, caplog):
    fail = raising(EndxError("the index is gone"))
    broken, until = (
        few_programs(service.model, Instead(service.index, search=fail)),
        functools.partial(asyncio.sleep, 20),
    )
    with one_line_error("the index is gone"):
        asyncio.run(server.serve(make_app(broken), server.bind("127.0.0.1", 0), Limits(), until))
    running = serve(service=Instead(service, preparations=list, later_preparations=lambda: [fail]))
    wait_for(lambda: "the index is gone" in caplog.text, 20)
    assert_alive(running)


def test_when_it_is_stopped_it_finishes_what_it_has(serve, gated):
    running = serve(service=gated)
    with running.connect() as asked:
        asked.sendall(head(running, len(QUESTION)) + QUESTION)
        wait_for(lambda: len(gated.batches) == 1)
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        with pytest.raises(ConnectionRefusedError):
            wait_for(lambda: running.connect().close())
        gated.gate.set()
        assert until_closed(asked)[1].startswith(b"HTTP/1.1 200 ")
        stopping.join(10)


def test_a_failure_affects_its_own_request_only(serve, service, caplog):
    failures = [ZeroDivisionError]

    def run(works):
        if failures:
            raise failures.pop()
        return service.run(works)

    running = serve(service=Instead(service, run=run, preparations=list, later_preparations=list))
    status, content = running.post("/search", QUESTION)
    assert (status, content["error"]["type"]) == (500, "server_error")
    wait_for(lambda: "ZeroDivisionError" in caplog.text)
    assert_alive(running)
