import pytest

from endx_jax.serving import app

TWO = [("BM25", lambda: None), ("search", lambda: None)]


@pytest.mark.parametrize("at_terminal", [True, False])
def test_a_terminal_shows_the_steps_of_the_warm_up(capsys, monkeypatch, at_terminal):
    monkeypatch.setattr(app, "showing_progress", lambda: at_terminal)
    for step in app._shown(TWO):
        step()
    printed = capsys.readouterr().err
    for shown in ("getting ready", "0/2", "BM25", "1/2", "search"):
        assert (shown in printed) == at_terminal
