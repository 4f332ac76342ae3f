import http.server
import json
import socketserver
import statistics
import threading
import time

import pytest
from small_squad import write_squad


@pytest.fixture
def answering():
    """Starts a server whose answer is always of one status, with five bytes; returns its port."""
    servers = []

    def start(status: int) -> int:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(status)
                self.send_header("Content-Length", "5")
                self.end_headers()
                self.wfile.write(b"hello")  # after the headers, and so by itself

            def log_message(self, *arguments):
                pass

        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever).start()
        return servers[-1].server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_clients_ask_again_when_they_are_answered(script, answering):
    port = answering(200)
    load = script("load").put_load_on(port, "/search", [b"{}", b"{ }"], clients=3, seconds=0.2)
    assert len(load.seconds) > 6
    assert load.failures == []
    assert load.rate == pytest.approx(len(load.seconds) / load.span)
    assert 1 <= load.percentile(50) <= load.percentile(99)


def test_other_statuses_are_failures(script, answering):
    port = answering(429)
    load = script("load").put_load_on(port, "/search", [b"{}"], clients=1, seconds=0.05)
    assert set(load.failures) == {"429"}
    assert load.seconds == []


def test_slow_clients_stay_until_they_are_cut_off_and_come_again(script):
    """A server that keeps every connection for 50 ms, and answers nothing."""
    first = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            first.append(self.request.recv(1000).splitlines()[:2])
            time.sleep(0.05)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        load = script("load").put_load_on(server.server_address[1], "/search", [b"{}"], clients=0, seconds=0.5, slow=1)
        server.shutdown()
    assert len(load.held) >= 4
    assert statistics.median(load.held) > 0.03
    assert {b"Host: elsewhere", b"Host: 127.0.0.1"} == {host.rpartition(b":")[0] for _, host in first}


def test_stops_when_the_answers_differ(script):
    serving = script("serving")

    class Fixed:
        def __init__(self, *scores):
            self._scores = scores

        def search(self, body):
            return [{"score": score} for score in self._scores]

    serving.check_same_work({"endx serve": Fixed(0.5, 0.4), "peer": Fixed(0.5, 0.400001)}, [b"{}"])
    with pytest.raises(SystemExit, match=r"peer finds \[0.5, 0.3\] where we find \[0.5, 0.4\]"):
        serving.check_same_work({"endx serve": Fixed(0.5, 0.4), "peer": Fixed(0.5, 0.3)}, [b"{}"])


@pytest.mark.slow
def test_measures_ours_alone(start, tiny_bert, tmp_path):
    file = tmp_path / "result.json"
    start(
        "serving",
        f"--data={write_squad(tmp_path / 'squad')}",
        f"--model={tiny_bert}",
        "--no_peer",
        *("--clients", "1", "2"),
        *("--seconds=0.3", "--warmup=0.1", "--rounds=1", "--documents=20"),
        f"--json={file}",
    )
    rows = json.loads(file.read_text())["results"]
    assert [(row["clients"], row["failures"]) for row in rows] == [(1, 0), (2, 0)]
    assert all(row["requests/s"] > 1 and row["p50 ms"] <= row["p99 ms"] for row in rows)
