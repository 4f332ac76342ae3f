import pytest
from helpers import reader_of
from small_squad import write_regular

from reproduction.__main__ import run


@pytest.fixture
def reproduce(capsys):
    """Runs a task: see `reader_of`."""
    return reader_of(run, capsys)


@pytest.fixture(scope="module")
def squad(tmp_path_factory):
    """A folder of SQuAD's two files."""
    return write_regular(tmp_path_factory.mktemp("squad"))
