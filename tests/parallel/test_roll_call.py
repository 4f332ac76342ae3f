"""The roll call, with threads in the place of processes."""

import concurrent.futures
import socket

import pytest

from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.parallel.environment import Place
from endx_jax.parallel.roll_call import roll_call


@pytest.fixture
def address():
    with socket.create_server(("localhost", 0)) as probe:
        return f"localhost:{probe.getsockname()[1]}"


def ends(*places: Place, timeout: float = 0.7) -> list[str]:
    """How the roll call ends for each place: `there`, or the kind and the words of the failure."""

    def end(place: Place) -> str:
        try:
            roll_call(place, timeout)
        except (EndxError, RunInterrupted) as failure:
            return f"{type(failure).__name__}: {failure}"
        return "there"

    with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(end, places))


def test_all_are_there_in_whatever_order_they_come(address):
    assert ends(*(Place(address, 3, index) for index in (2, 0, 1)), timeout=20) == ["there"] * 3


def test_the_missing_are_named_to_all_that_came(address):
    hosts = ("a", "b", "c", "d")
    zero, two = ends(Place(address, 4, 0, hosts), Place(address, 4, 2))
    assert zero.startswith(f"RunInterrupted: processes 1 on b and 3 on d of 4 have not joined process 0 at {address}")
    assert "2 on " in zero[zero.index("(here: 0 on ") :]
    assert two == zero


def test_one_that_is_missing(address):
    (zero,) = ends(Place(address, 2, 0))
    assert "process 1 of 2 has not joined" in zero


def test_many_missing_are_counted(address):
    (zero,) = ends(Place(address, 64, 0), timeout=0.1)
    assert "processes 1, 2, 3, 4, 5, 6, 7, 8 and 55 more of 64 have not joined" in zero


def test_process_0_is_missing(address):
    (one,) = ends(Place(address, 2, 1))
    assert one.startswith(f"RunInterrupted: process 0 of 2 did not answer at {address} within 1 s (Connection refused)")


def test_two_that_are_the_same(address):
    found = ends(Place(address, 3, 0), Place(address, 3, 1), Place(address, 3, 1), timeout=20)
    assert all(line.startswith("EndxError: there are two processes 1, on") for line in found)


def test_numbers_that_disagree(address):
    found = ends(Place(address, 3, 0), Place(address, 2, 1), timeout=20)
    assert all("expects 2 processes, process 0 expects 3" in line for line in found)


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        (zero,) = ends(Place(f"localhost:{port}", 2, 0))
    assert zero.startswith(f"EndxError: process 0 can't listen on port {port} (Address already in use)")


def test_a_stranger_and_one_that_went_away_do_not_count(address):
    host, _, port = address.rpartition(":")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        zero = pool.submit(ends, Place(address, 2, 0), timeout=20)
        for words in (b"GET / HTTP/1.1\n", b'{"index": 1, "count": 2, "host": "gone"}\n'):
            connected = False
            while not connected:
                try:
                    line = socket.create_connection((host, int(port)))
                    connected = True
                except ConnectionRefusedError:
                    continue
            with line:
                line.sendall(words)
        assert ends(Place(address, 2, 1), timeout=20) == ["there"]
        assert zero.result() == ["there"]
