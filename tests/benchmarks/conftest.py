"""The benchmarks are scripts in a folder of their own, where they find each other."""

import importlib
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Imports a benchmark by its name."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture
def start(script, monkeypatch, capsys):
    """Runs a benchmark's `main` with the given arguments and returns what it printed."""

    def run(name: str, *arguments: object) -> str:
        module = script(name)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        module.main()
        return capsys.readouterr().out

    return run
