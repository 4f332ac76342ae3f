"""Bars whose elapsed time moves while no item is done."""

import io
import threading
import time

import pytest
import tqdm

from endx_jax import progress
from endx_jax.parallel import console


def test_a_bar_is_drawn_while_nothing_is_done(monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    screen = io.StringIO()
    with progress.ticking(tqdm.tqdm(desc="compiling", bar_format="{desc}: {elapsed}", file=screen)):
        first = screen.getvalue().count("compiling: 00:0")
        end = time.monotonic() + 10
        while screen.getvalue().count("compiling: 00:0") < first + 3 and time.monotonic() < end:
            time.sleep(0.01)
    assert screen.getvalue().count("compiling: 00:0") >= first + 3


def test_the_thread_ends_with_the_block_also_after_an_error():
    def fail():
        names.update(thread.name for thread in threading.enumerate())
        raise KeyError

    names = set()
    with pytest.raises(KeyError), progress.ticking(tqdm.tqdm(file=io.StringIO())):
        fail()
    assert "progress" in names
    assert "progress" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(("terminal", "lines"), [(True, ""), (False, "compiling 2 programs\n")])
def test_work_is_shown_by_a_clock_at_a_terminal_and_a_line_elsewhere(terminal, lines, monkeypatch, capsys):
    monkeypatch.setattr(console, "showing_progress", lambda: terminal)
    with console.working("compiling 2 programs"):
        pass
    shown = capsys.readouterr()
    assert shown.out == lines
    assert ("compiling 2 programs: 00:00" in shown.err) == terminal


def test_other_processes_are_silent(monkeypatch, capsys):
    monkeypatch.setattr(console, "is_primary", lambda: False)
    with console.working("compiling 2 programs"):
        pass
    assert capsys.readouterr() == ("", "")
