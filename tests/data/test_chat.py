import functools

import pytest
from chat_server import ChatServer, questions, reply
from helpers import one_line_error
from loopback import NO_API
from refusals import check_refusal

from endx_jax.data.chat import Chat, NoAnswer

KEY = "sk-secret-123"
GOOD = reply(questions("1"))
NO_CHAT = (b"<html>Log in</html>", *NO_API)
NO_CHAT += (b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": [{"message": {"content": 5}}]}')


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Lets openai's client repeat requests at once, for which it has no setting."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0, raising=False)


def client(server, **changes) -> Chat:
    options = {"url": server.address, "fields": {"model": "m"}, "key": KEY, "timeout": 5.0}
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


def test_without_a_key_none_is_sent(tmp_path, variables):
    with ChatServer() as server:
        variables(NETRC=str(tmp_path / "netrc"))
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hidden\n")
        client(server, key="").ask("passage 1")
    assert "Authorization" not in server.seen[0][1]


@pytest.mark.parametrize("failure", [(429, {}, b""), (500, {}, b"oops"), (503, {}, b""), "break"])
def test_a_request_that_may_succeed_later_is_repeated(failure):
    with ChatServer(lambda _, times: GOOD if times == 3 else failure) as server:
        assert client(server, retries=2).ask("passage 1").text == questions("1")
        assert server.asked["1"] == 3
        with one_line_error("answers with status|the connection failed") as caught:
            client(server, retries=1).ask("passage 2")
        assert isinstance(caught.value, NoAnswer)
        assert server.asked["2"] == 2


@pytest.mark.parametrize("content", NO_CHAT)
def test_a_response_that_is_no_answer_of_a_chat_is_one_line(content):
    with ChatServer(lambda *_: content) as server, one_line_error("status 200 with no answer of a chat") as caught:
        client(server).ask("passage 1")
    assert isinstance(caught.value, NoAnswer)


def test_a_response_beyond_the_limit_or_none_in_time_is_one_line():
    with ChatServer(lambda *_: reply("x" * 1_000_000)) as server, one_line_error("answer of 1,000,.* bytes, of which"):
        client(server).ask("passage 1")
    with ChatServer(delay=2.0) as server, one_line_error("no answer in 0.2 s, 2 times"):
        client(server, timeout=0.2, retries=1).ask("passage 1")


def test_no_server_and_a_name_that_no_host_has_are_one_line():
    with ChatServer() as server:
        pass
    check_refusal(lambda: client(server, retries=1).ask("passage 1"), "2 times", "the connection failed (ConnectError)")
    check_refusal(lambda: Chat("http://..", {"model": "m"}).ask("passage 1"), "the connection failed (Unicode")


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


def test_a_key_is_in_no_message_and_not_sent_where_a_server_redirects_to():
    with ChatServer() as other, ChatServer(lambda *_: (307, {"Location": f"{other.address}/v1"}, b"")) as server:
        check_refusal(lambda: client(server).ask("passage 1"), "status 307")
        assert not other.seen
    assert KEY not in repr(Chat("http://a", {}, KEY))
    with one_line_error("^the key of the API holds characters that no key has") as caught:
        Chat("http://a", {}, f"{KEY}\nX: y")
    assert KEY not in str(caught.value)
    echoed = f'{{"choices": [{{"message": "{KEY}"}}], "{KEY}": 1}}'.encode()
    with ChatServer(lambda *_: echoed) as server, one_line_error("no answer of a chat") as caught:
        client(server, retries=0).ask("passage 1")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("url", ["", "localhost", "file:///etc/passwd", "http://", "http://me:word@h", "http://h?a=b"])
def test_an_endpoint_is_an_address(url):
    check_refusal(lambda: Chat(url, {}), "--endpoint must be http")


def test_a_client_that_was_stopped_sends_nothing_more():
    def act(number, times):
        stopped.stop.set()
        return 500, {}, b""

    with ChatServer(act) as server:
        stopped = client(server)
        for prompt in ("passage 1", "passage 2"):
            check_refusal(functools.partial(stopped.ask, prompt), "stopped")
    assert server.asked == {"1": 1}
