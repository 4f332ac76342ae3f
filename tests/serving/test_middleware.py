import pytest
from http_server import JSON, Running

from endx_jax.serving.settings import ServingSettings

TOKEN = {"Authorization": "Bearer right"}
DISGUISED = ["[::1].evil.com", "[::1]evil.com:80", "127.0.0.1:@evil", "127.0.0.1:80@evil", "localhost:x", "[::1"]


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(served):
    lines = "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 40\r\n"
    with served.connect() as connection:
        connection.sendall(f"{lines}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode())
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers = connection.makefile("rb").read()
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1


@pytest.fixture(scope="module")
def guarded(service):
    running = Running(service, ServingSettings(token="right", loopback_only=False), ready=True)
    yield running
    running.stop()


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "right"}])
def test_without_the_token_nothing_is_told(guarded, headers):
    asked = ["POST /search", "POST /v1/embeddings", "POST /documents", "DELETE /documents/x/static/y"]
    for line in [*asked, *map("GET {}".format, ("/info", "/metrics", "/openapi.json", "/nowhere"))]:
        status, content, answered = guarded.ask(*line.split(), b"{}", {**JSON, **headers})
        assert (line, status, content["error"]["type"]) == (line, 401, "authentication_error")
        assert answered["WWW-Authenticate"] == "Bearer"


def test_with_the_token_all_is_told_and_the_page_and_the_probes_need_none(guarded):
    for path in ("/", "/healthz", "/readyz", "/static/index.html"):
        assert guarded.get(path)[0] == 200
    assert guarded.get("/info", TOKEN)[0] == 200
    assert guarded.post("/search", {"query": "the cat"}, {**JSON, **TOKEN})[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "128.0.0.1:80", "127.0.0.1.evil.example", "", *DISGUISED])
def test_a_name_that_is_not_this_machines_is_refused_where_there_is_no_token(served, guarded, host):
    status, content, _ = served.ask("GET", "/info", headers={"Host": host})
    assert (status, content["error"]["code"]) == (421, "wrong_host")
    assert guarded.get("/info", {"Host": host, **TOKEN})[0] == 200


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "127.0.0.2", "[::1]:8000", "[0:0::1]"])
def test_names_of_this_machine_are_known(served, host):
    assert served.get("/info", {"Host": host})[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_requests_that_other_pages_can_send_are_refused(served, kind):
    status, content = served.post("/documents", {"documents": [{"text": "x"}]}, {"Content-Type": kind})
    assert (status, content["error"]["code"]) == (415, "content_type")


def test_every_answer_has_the_headers_that_keep_a_page_to_itself(served):
    for path in ("/", "/static/page.js", "/healthz", "/nowhere"):
        headers = served.ask("GET", path)[2]
        assert headers["Content-Security-Policy"].startswith("default-src 'self'; frame-ancestors 'none'")
        assert headers["X-Content-Type-Options"] == "nosniff"
