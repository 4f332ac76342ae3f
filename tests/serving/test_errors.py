import concurrent.futures
import sqlite3
import time

import pytest
from helpers import Instead, raising, wait_for
from http_server import JSON, unprepared

from endx_jax.errors import DiskFull, EndxError, InUse, ReadOnly

DOCUMENTS = {"documents": [{"text": "new", "id": "errors"}]}
FULL = "the server's disk is full: nothing was changed"
REFUSALS = [
    (InUse("the index is in use"), 503, "unavailable_error", "in_use", "the index is in use"),
    (EndxError("it is gone"), 500, "server_error", "failed", "it is gone"),
    (ReadOnly("it is a copy"), 409, "invalid_request_error", "read_only", "it is a copy"),
    (DiskFull("can't write the index: the disk is full"), 507, "server_error", "disk_full", FULL),
]


@pytest.mark.parametrize(("failure", "status", "kind", "code", "message"), REFUSALS)
def test_a_change_that_an_index_refuses_is_a_failure(service, serve, caplog, failure, status, kind, code, message):
    refusing = Instead(service.index, add=raising(failure))
    running = serve(service=unprepared(service.model, refusing))
    found, content, headers = running.ask("POST", "/documents", b'{"documents": [{"text": "x"}]}', JSON)
    assert (found, content["error"]) == (status, {"message": message, "type": kind, "param": None, "code": code})
    assert headers["Retry-After"] == ("1" if status == 503 else None)
    wait_for(lambda: str(failure) in caplog.text)
    assert "Traceback" not in caplog.text
    del refusing.add
    check_changes(running)


def check_changes(running) -> None:
    """Adds a document and deletes it."""
    assert running.post("/documents", DOCUMENTS)[0] == 201
    assert running.ask("DELETE", "/documents/errors")[0] == 200


def test_a_lock_that_another_process_holds_refuses_changes_and_no_search(served, short_wait):
    foreign = sqlite3.connect(served.service.index.path, isolation_level=None)
    foreign.execute("BEGIN EXCLUSIVE")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        change = pool.submit(served.ask, "POST", "/documents", b'{"documents": [{"text": "x"}]}', JSON)
        start = time.monotonic()
        while not change.done():
            assert served.post("/search", {"query": "the cat", "mode": "dense"})[0] == 200
        assert 0.9 * short_wait < time.monotonic() - start < 5
        status, content, headers = change.result()
    assert (status, content["error"]["code"], headers["Retry-After"]) == (503, "in_use", "1")
    foreign.close()
    check_changes(served)


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
    check_changes(served)
