"""Heartbeats of others, written by hand, against a clock that stands still."""

import dataclasses

import pytest

from endx_jax.errors import EndxError, RunInterrupted
from endx_jax.parallel.peers import Beat, Peers, beat_file

TIMEOUT = 100.0


@pytest.fixture
def peers(tmp_path):
    return Peers(tmp_path, [1, 2], timeout=TIMEOUT, pause=50.0)


def beat(process, *, time=0.0, **changes):
    values = {"step": 7, "phase": "step", "phase_seconds": 0.0} | changes
    return Beat(process=process, host="b", pid=40 + process, time=time, **values)


def write(folder, *beats):
    for one in beats:
        beat_file(folder, one.process).write_text(one.text)


def look(peers, *times):
    for now in times:
        peers.look(now)


def test_a_beat_is_read_back_and_other_things_are_none():
    assert Beat.parse(beat(1).text) == beat(1)
    assert Beat.parse("") is Beat.parse('{"process": 1}') is Beat.parse("[1]") is None


def test_who_is_silent_is_named(peers, tmp_path):
    for now in (0.0, 40.0, 80.0, 120.0):
        write(tmp_path, beat(1, time=now), beat(2, time=min(now, 40.0)))
        look(peers, now)
    assert peers.silent(139.0) is None
    silence = peers.silent(141.0)
    assert isinstance(silence, RunInterrupted)
    assert str(silence).startswith("process 2 on b (pid 42) has been silent for 101 s, since step 7 (step); the same")


def test_what_an_earlier_run_left_is_no_sign_of_life_and_no_end(peers, tmp_path):
    write(tmp_path, beat(1, status=2, message="old"))
    look(peers, 0.0, 40.0, 80.0, 120.0)
    assert peers.ended(120.0) is None
    lines = "process 1 has not been heard of for 120 s; process 2 has not been heard of for 120 s; the same command"
    assert str(peers.silent(120.0)).startswith(lines)


@pytest.mark.parametrize(("status", "kind"), [(2, EndxError), (75, RunInterrupted)])
def test_the_words_of_one_that_ended(peers, tmp_path, status, kind):
    write(tmp_path, beat(1))
    look(peers, 0.0)
    write(tmp_path, beat(1, phase="failed", status=status, message="no such file"))
    look(peers, 2.0)
    assert peers.ended(3.0, grace=4.0) is None  # this process may be about to say the same
    failure = peers.ended(6.0, grace=4.0)
    assert (type(failure), str(failure)) == (kind, "process 1 on b (pid 41) has ended: no such file")


def test_one_that_left_because_of_another_is_quoted_at_once(peers, tmp_path):
    write(tmp_path, beat(1))
    look(peers, 0.0)
    write(tmp_path, beat(1, phase="left", status=75, message="process 2 on b (pid 42) has been silent"))
    look(peers, 2.0)
    assert str(peers.ended(2.0, grace=4.0)) == "process 2 on b (pid 42) has been silent"


def test_one_that_is_done_may_be_silent(peers, tmp_path):
    write(tmp_path, beat(1), beat(2))
    look(peers, 0.0)
    write(tmp_path, beat(1, phase="done", status=0), beat(2, phase="done", status=0))
    look(peers, 40.0, 80.0, 120.0, 160.0)
    assert peers.ended(160.0) is None
    assert peers.silent(160.0) is None


def test_a_process_that_was_held_up_itself_blames_nobody(peers, tmp_path):
    write(tmp_path, beat(1), beat(2))
    look(peers, 0.0, 40.0, 1000.0)
    assert peers.silent(1099.0) is None
    assert peers.silent(1101.0) is not None


def test_slow_processes_are_warned_of_once(peers, tmp_path):
    mine = beat(0, phase_seconds=30.0)  # waits in a step
    write(tmp_path, beat(1), beat(2))
    look(peers, 0.0)
    write(tmp_path, beat(1, time=1.0, phase="reading", phase_seconds=29.0), beat(2, time=1.0, phase_seconds=30.0))
    look(peers, 2.0)
    assert list(peers.warnings(3.0, mine)) == [
        "process 1 on b (pid 41) has been reading for 29 s; the others wait for it"
    ]
    assert list(peers.warnings(3.0, mine)) == []
    assert list(peers.warnings(3.0, dataclasses.replace(mine, phase_seconds=2.0))) == []


def test_a_silent_process_is_warned_of_before_it_counts_as_gone(peers, tmp_path):
    mine = beat(0)
    write(tmp_path, beat(1), beat(2))
    look(peers, 0.0)
    write(tmp_path, beat(1, time=1.0), beat(2, time=1.0))
    look(peers, 1.0)
    write(tmp_path, beat(1, time=20.0))
    look(peers, 20.0)
    assert list(peers.warnings(27.0, mine)) == ["process 2 on b (pid 42) has been silent for 26 s, since step 7 (step)"]
    assert peers.silent(27.0) is None
