import glob
import os
import subprocess
import sys

import pytest
from helpers import raising

import endx_jax.__main__ as program
from endx_jax.cli import entry, search, train


def test_the_allocator_settings_of_training_apply_to_no_other_verb(monkeypatch):
    called = []
    monkeypatch.setattr(program, "use_large_pages", lambda: called.append(sys.argv[1]))
    monkeypatch.setattr(program, "run_verb", lambda argv: 0)
    for verb in ("train", "plan", "serve", "encode"):
        monkeypatch.setattr(sys, "argv", ["endx", verb, "--help"])
        assert program.main() == 0
    assert called == ["train", "plan"]


@pytest.mark.parametrize(
    ("verb", "failure", "status", "named"),
    [
        (train, MemoryError(), 2, ["out of memory", "--config.train.tower_chunk"]),
        (train, RuntimeError("RESOURCE_EXHAUSTED: 9 bytes\nmore"), 2, ["out of memory", "--config.train.tower_chunk"]),
        (search, MemoryError(), 2, ["out of memory", "--precision=float16"]),
        (train, KeyboardInterrupt(), 130, ["interrupted", "the same command resumes from its checkpoint"]),
    ],
)
def test_a_verb_that_cannot_go_on_ends_with_one_line(verb, failure, status, named, monkeypatch, endx):
    monkeypatch.setattr(verb, "main", raising(failure))
    name = verb.__name__.rpartition(".")[2]
    error = endx(name, status=status).err
    assert error.startswith(f"endx {name}: ")
    assert error.count("\n") == 1
    assert [part for part in named if part not in error] == []


# One process: importing JAX is what takes long.
ABSENT = """
import os, jax
from endx_jax.cli.entry import run_verb
for platform in ("tpuu", "cuda"):
    os.environ["JAX_PLATFORMS"] = platform
    jax.config.update("jax_platforms", platform)
    assert run_verb(["serve", "--index=nowhere", "--port=0"]) == 2
"""


@pytest.mark.skipif(any(map(glob.glob, entry.ACCELERATORS)), reason="there is an accelerator")
def test_a_platform_that_is_absent_is_one_line():
    done = subprocess.run([sys.executable, "-c", ABSENT], capture_output=True, text=True, timeout=60, check=True)
    unknown, missing = done.stderr.splitlines()
    line = "Unable to initialize backend 'tpuu': Backend 'tpuu' is not in the list of known backends: "
    assert unknown.startswith(f"endx serve: JAX_PLATFORMS=tpuu: {line}")
    assert missing == "endx serve: JAX_PLATFORMS=cuda: JAX has no such device; unset it, or install jax[cuda13]"


@pytest.mark.parametrize(
    "command", [("endx_jax", "--help"), ("endx_jax", "--version"), ("reproduction", "table")], ids=" ".join
)
def test_output_that_nobody_reads_ends_the_program(command):
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([sys.executable, "-m", *command], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


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
