import pytest
from helpers import reader_of

from reproduction.__main__ import run


@pytest.fixture
def reproduce(capsys):
    """Runs a task: see `reader_of`."""
    return reader_of(run, capsys)
