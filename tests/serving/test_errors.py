import concurrent.futures
import sqlite3
import time

import pytest
from http_server import JSON, wait_for

from endx_jax.errors import DiskFull, EndxError, InUse, ReadOnly
from endx_jax.index import index_file

DOCUMENTS = {"documents": [{"text": "new", "id": "errors"}]}
REFUSALS = [
    (InUse("the index is in use"), 503, "unavailable_error", "1"),
    (EndxError("it is gone"), 500, "server_error", None),
    (ReadOnly("it is a copy"), 409, "invalid_request_error", None),
]


def full(*args, **kwargs):
    raise DiskFull("can't write the index: the disk is full")


def test_a_full_disk_is_status_507_and_changes_nothing(served, monkeypatch, caplog):
    before = served.get("/info")[1]["documents"]
    with monkeypatch.context() as disk:
        disk.setattr(served.service.index, "add", full)
        status, content = served.post("/documents", DOCUMENTS)
    assert (status, content["error"]["code"]) == (507, "disk_full")
    assert content["error"]["message"] == "the server's disk is full: nothing was changed"
    assert "the disk is full" in caplog.text
    assert "Traceback" not in caplog.text
    assert served.post("/search", {"query": "the cat"})[1]["documents"] == before
    assert served.post("/documents", DOCUMENTS)[0] == 201
    assert served.ask("DELETE", "/documents/errors")[0] == 200


@pytest.mark.parametrize(("failure", "status", "kind", "retry"), REFUSALS)
def test_a_change_that_an_index_refuses_is_a_failure(served, monkeypatch, caplog, failure, status, kind, retry):
    def refuse(*args, **kwargs):
        raise failure

    monkeypatch.setattr(served.service.index, "add", refuse)
    found, content, headers = served.ask("POST", "/documents", b'{"documents": [{"text": "x"}]}', JSON)
    assert (found, content["error"]["type"], content["error"]["message"]) == (status, kind, str(failure))
    assert (content["error"]["code"] == "read_only") == isinstance(failure, ReadOnly)
    assert headers["Retry-After"] == retry
    wait_for(lambda: str(failure) in caplog.text)
    assert "Traceback" not in caplog.text


def test_a_lock_that_another_process_holds_refuses_changes_and_no_search(served, monkeypatch):
    monkeypatch.setattr(index_file, "WAIT", 1.0)
    foreign = sqlite3.connect(served.service.index.path, isolation_level=None)
    foreign.execute("BEGIN EXCLUSIVE")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        change = pool.submit(served.ask, "POST", "/documents", b'{"documents": [{"text": "x"}]}', JSON)
        start = time.monotonic()
        while not change.done():
            assert served.post("/search", {"query": "the cat", "mode": "dense"})[0] == 200
        assert 0.9 < time.monotonic() - start < 5
        status, content, headers = change.result()
    assert (status, content["error"]["code"], headers["Retry-After"]) == (503, "in_use", "1")
    foreign.close()
    assert served.post("/documents", DOCUMENTS)[0] == 201
    assert served.ask("DELETE", "/documents/errors")[0] == 200


def test_an_index_that_was_moved_away_refuses_changes_and_no_search(served, caplog):
    path = served.service.index.path
    away = path.rename(path.with_name("away"))
    try:
        status, content = served.post("/documents", DOCUMENTS)
        assert status in (500, 503)
        assert str(path) in content["error"]["message"]
        assert served.post("/search", {"query": "the cat"})[0] == 200
    finally:
        away.rename(path)
    assert "Traceback" not in caplog.text
    assert served.post("/documents", DOCUMENTS)[0] == 201
    assert served.ask("DELETE", "/documents/errors")[0] == 200
