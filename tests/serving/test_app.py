import pytest

from endx_jax.serving import app
from endx_jax.serving.service import Preparation

TWO = [Preparation("BM25", lambda: None), Preparation("search", lambda: None)]


@pytest.mark.parametrize("at_terminal", [True, False])
def test_a_terminal_shows_the_steps_of_the_warm_up(capsys, monkeypatch, at_terminal):
    monkeypatch.setattr(app, "showing_progress", lambda: at_terminal)
    for step in app.WarmUp(TWO).steps():
        step()
    printed = capsys.readouterr().err
    for shown in ("getting ready", "0/2", "BM25", "1/2", "search"):
        assert (shown in printed) == at_terminal


def test_progress_names_the_step_that_runs():
    warm_up = app.WarmUp(TWO)
    for number, _ in enumerate(warm_up.steps()):
        found = warm_up.progress()
        assert found.pop("seconds") >= 0
        assert found == {"step": number + 1, "steps": 2, "doing": ("BM25", "search")[number]}
