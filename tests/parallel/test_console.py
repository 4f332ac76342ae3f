import contextlib
import io
import logging
import threading

import pytest
import tqdm
from helpers import Terminal, wait_for
from several_processes import as_processes

from endx_jax.parallel import console
from endx_jax.parallel.console import LOG, gathering, say, silenced


@pytest.fixture
def handler():
    """A handler of the logger, and the texts that it got."""
    texts = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append((record.levelno, record.getMessage()))
    LOG.addHandler(handler)
    yield texts
    LOG.removeHandler(handler)


def test_messages_are_printed_on_stdout_and_only_there(capfd):
    with gathering() as records:
        say("100 % of data.path")
    assert capfd.readouterr() == ("100 % of data.path\n", "")
    assert records == []


@pytest.mark.parametrize(("encoding", "printed"), [("latin-1", b"caf\xe9 \\u2192\n"), ("utf-8", "café →\n".encode())])
def test_characters_that_stdout_can_not_encode_are_escapes(monkeypatch, encoding, printed):
    raw = io.BytesIO()
    for stream in (io.TextIOWrapper(raw, encoding), None):  # None: a program without a console
        monkeypatch.setattr("sys.stdout", stream)
        say("café →")
    assert raw.getvalue() == printed


def test_the_level_of_the_logger_silences_messages_but_no_warnings(capfd, caplog):
    with silenced():
        say("a message")
        LOG.warning("a warning")
    assert capfd.readouterr().out == ""
    assert caplog.messages == ["a warning"]


def test_contexts_of_silence_may_overlap(capfd):
    first, second = silenced(), silenced()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    say("silent")
    second.__exit__(None, None, None)
    say("again")
    assert capfd.readouterr().out == "again\n"


def test_warnings_among_the_messages_are_logged_where_messages_are_silenced(capfd, caplog):
    with silenced(), gathering() as records:
        say("warning: at step 2, the embeddings collapse")
        logging.getLogger("endx_jax.data.formats").warning("skipped 3 rows")
    assert caplog.messages == ["warning: at step 2, the embeddings collapse", "skipped 3 rows"]
    assert records == []  # nothing would print them
    say("warning: as other messages")
    assert capfd.readouterr().out == "warning: as other messages\n"


def test_a_program_s_own_logging_gets_messages_in_place_of_stdout(capfd, caplog, handler):
    say("100 %")
    assert handler == [(logging.INFO, "100 %")]
    assert capfd.readouterr().out == ""


def test_messages_reach_the_root_logger_if_it_shows_their_level(capfd, caplog):
    with caplog.at_level(logging.INFO):
        say("to the log")
    assert caplog.messages == ["to the log"]
    assert capfd.readouterr().out == ""


def test_messages_are_printed_if_the_root_logger_has_a_level_and_no_handler_for_them(capfd, caplog, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    with caplog.at_level(logging.INFO):  # the attribute alone would stay in the cache of `isEnabledFor`
        say("to stdout")
    assert capfd.readouterr().out == "to stdout\n"


def test_a_bar_is_drawn_while_nothing_is_done():
    screen = io.StringIO()
    with console.ticking(tqdm.tqdm(desc="compiling", bar_format="{desc}: {elapsed}", file=screen)):
        first = screen.getvalue().count("compiling: 00:0")
        wait_for(lambda: screen.getvalue().count("compiling: 00:0") > first)


def test_the_thread_ends_with_the_block_also_after_an_error():
    def fail():
        within.update(threading.enumerate())
        raise KeyError

    before, within = {*threading.enumerate()}, set()
    with pytest.raises(KeyError), console.ticking(tqdm.tqdm(file=io.StringIO())):
        fail()
    assert len(within - before) == 1
    assert {*threading.enumerate()} == before


def work(process=0):
    with console.working("compiling 2 programs"):
        pass


def test_work_is_shown_by_a_clock_at_a_terminal(capsys):
    with contextlib.redirect_stderr(Terminal()) as screen:
        work()
    assert capsys.readouterr().out == ""
    assert "compiling 2 programs: 00:00" in screen.getvalue()


def test_work_is_shown_by_a_line_elsewhere_and_by_one_process(monkeypatch, capsys):
    as_processes(monkeypatch, work)
    assert capsys.readouterr() == ("compiling 2 programs\n", "")
