"""The client of chat servers: what it repeats, how long it waits, and what it never says."""

import email.utils
import threading
import time

import pytest
from chat_server import ChatServer, questions, reply
from helpers import one_line_error
from loopback import NO_API

from endx_jax.data import chat
from endx_jax.data.chat import Chat, NoAnswer

KEY = "sk-secret-123"
GOOD = reply(questions("1"))


class Waits(threading.Event):
    """The seconds that were waited for, instead of the waiting."""

    def __init__(self):
        super().__init__()
        self.found = []

    def wait(self, seconds=None):
        self.found.append(seconds)


def client(server, **changes) -> Chat:
    options = {"url": server.address, "fields": {"model": "m"}, "key": KEY, "timeout": 5.0, "stop": Waits()}
    return Chat(**(options | changes))


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_a_request_is_one_of_the_api(path):
    with ChatServer() as server:
        found = client(server, url=server.address + path, fields={"model": "m", "n": 1}).ask("passage 1")
    assert (found.text, found.complete, found.tokens) == (questions("1"), True, (100, 30))
    ((asked, headers, body),) = server.seen
    assert asked == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body == {"model": "m", "n": 1, "messages": [{"role": "user", "content": "passage 1"}]}


def test_without_a_key_none_is_sent(tmp_path, monkeypatch):
    """Not even one of ~/.netrc, which is meant for other programs."""
    with ChatServer() as server:
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hidden\n")
        client(server, key="").ask("passage 1")
    assert "Authorization" not in server.seen[0][1]


FAILURES = {
    "busy": (429, {}, b""),
    "broken": (500, {}, b"oops"),
    "gone": (503, {}, b""),
    "cut": "break",
    "html": b"<html>Log in</html>",
    **{f"no API {n}": content for n, content in enumerate(NO_API)},
    "no choices": b'{"choices": []}',
    "no message": b'{"choices": [{}]}',
    "no text": b'{"choices": [{"message": {"content": 5}}]}',
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_request_that_may_succeed_later_is_repeated(failure):
    with ChatServer(lambda _, times: GOOD if times == 3 else failure) as server:
        patient = client(server)
        assert patient.ask("passage 1").text == questions("1")
        assert server.asked["1"] == 3
        first, second = patient.stop.found
        assert 0.5 <= first <= 1
        assert 1 <= second <= 2
        with one_line_error("2 times$") as caught:
            client(server, retries=1).ask("passage 2")
        assert isinstance(caught.value, NoAnswer)


def test_a_server_says_how_long_to_wait():
    later = email.utils.formatdate(time.time() + 100, usegmt=True)
    headers = {1: "7", 2: later, 3: "99999", 4: "soon", 5: later[:5]}
    act = lambda _, times: (429, {"Retry_After": headers[times]}, b"") if times in headers else GOOD  # noqa: E731
    with ChatServer(act) as server:
        patient = client(server)
        patient.ask("passage 1")
    waits = patient.stop.found
    assert waits[0] == 7
    assert 97 < waits[1] <= 100
    assert waits[2] == chat.MOST_WAIT
    assert 4 <= waits[3] <= 8
    assert 8 <= waits[4] <= 16


def test_a_response_that_drips_ends_with_the_timeout():
    with ChatServer(lambda *_: "slow") as server:
        began = time.monotonic()
        with one_line_error("no whole answer in 0.3 s, 1 times"):
            client(server, timeout=0.3, retries=0).ask("passage 1")
        assert time.monotonic() - began < 3
    with ChatServer(delay=2.0) as server, one_line_error("no answer in 0.2 s, 2 times"):
        client(server, timeout=0.2, retries=1).ask("passage 1")


def test_no_server_is_one_line():
    with ChatServer() as server:
        pass
    with one_line_error(r"the connection failed \(ConnectionRefusedError\), 2 times"):
        client(server, retries=1).ask("passage 1")


def test_a_long_answer_is_not_read_to_its_end():
    long = b" " * (chat.MOST_BYTES + 10)
    with ChatServer(lambda *_: long) as server, one_line_error("an answer of over 1,000,000 bytes"):
        client(server).ask("passage 1")


@pytest.mark.parametrize(("status", "kind"), [(400, NoAnswer), (422, NoAnswer), (401, ValueError), (404, ValueError)])
def test_a_refused_request_is_not_repeated_and_does_not_tell_the_key(status, kind):
    said = f'{{"error": "Incorrect API key {KEY} \x1b[31m"}}'.encode()
    with ChatServer(lambda *_: (status, {}, said)) as server:
        with one_line_error(f"answers with status {status}: .*Incorrect API key [*]{{3}} .x1b") as caught:
            client(server).ask("passage 1")
        assert server.asked["1"] == 1
    assert isinstance(caught.value, kind)
    assert isinstance(caught.value, NoAnswer) == (kind is NoAnswer)
    assert KEY not in str(caught.value)


def test_a_key_is_not_sent_where_a_server_redirects_to():
    with ChatServer() as other, ChatServer(lambda *_: (307, {"Location": f"{other.address}/v1"}, b"")) as server:
        with one_line_error("status 307"):
            client(server).ask("passage 1")
        assert not other.seen


def test_a_key_is_in_no_message_and_no_repr():
    assert KEY not in repr(Chat("http://a", {}, KEY))
    with one_line_error("^the key of the API holds characters that no key has") as caught:
        Chat("http://a", {}, f"{KEY}\nX: y")
    assert KEY not in str(caught.value)
    echoed = f'{{"choices": [{{"message": "{KEY}"}}], "{KEY}": 1}}'.encode()
    with ChatServer(lambda *_: echoed) as server, one_line_error("no answer of a chat") as caught:
        client(server, retries=0).ask("passage 1")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "localhost", "file:///etc/passwd", "http://", "http://me:word@host", "http://h?a=b"]
)
def test_an_endpoint_is_an_address(url):
    with one_line_error("--endpoint must be http"):
        Chat(url, {})


def test_a_client_that_was_stopped_sends_nothing():
    with ChatServer() as server:
        stopped = client(server)
        stopped.stop.set()
        with one_line_error("stopped"):
            stopped.ask("passage 1")
    assert not server.seen
