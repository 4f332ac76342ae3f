import glob
import os
import subprocess
import sys

import pytest

from endx_jax.cli import entry

SCRIPT = "import os, sys; from endx_jax.cli.entry import use_large_pages; use_large_pages(); "
SCRIPT += "print(os.getpid(), os.environ['GLIBC_TUNABLES'], *sys.argv[1:])"


@pytest.mark.skipif(
    sys.platform != "linux" or any(map(glob.glob, entry.ACCELERATORS)), reason="for Linux without an accelerator"
)
@pytest.mark.parametrize("own", [{}, {"GLIBC_TUNABLES": "glibc.malloc.check=0"}])
def test_a_program_starts_again_in_its_own_process_with_its_arguments_or_the_user_s_settings(own):
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"} | own
    command = [sys.executable, "-c", SCRIPT, "a b", "--c"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
        output = program.communicate()[0]
    assert output.split("\n")[0] == f"{program.pid} {own.get('GLIBC_TUNABLES', entry.TUNABLES)} a b --c"


def test_with_an_accelerator_nothing_changes(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started again"))
    monkeypatch.setattr(entry, "ACCELERATORS", (str(tmp_path),))
    entry.use_large_pages()
