import pytest

from reproduction.__main__ import run


@pytest.fixture
def reproduce(capsys):
    """Runs a task; returns its `out` and `err`, which is one line where the status is 2."""

    def run_and_read(*arguments, status=0):
        capsys.readouterr()
        assert run([*map(str, arguments)]) == status
        printed = capsys.readouterr()
        assert status != 2 or printed.err.count("\n") == 1
        return printed

    return run_and_read
