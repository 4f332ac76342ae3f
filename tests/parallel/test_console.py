import logging

import pytest

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
    with gathering() as lines:
        say("100 % of data.path")
    assert capfd.readouterr() == ("100 % of data.path\n", "")
    assert lines == []


def test_the_level_of_the_logger_silences_messages_but_no_warnings(capfd, caplog):
    with silenced():
        say("a message")
        LOG.warning("a warning")
    assert capfd.readouterr().out == ""
    assert caplog.messages == ["a warning"]
    say("again")
    assert capfd.readouterr().out == "again\n"


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
