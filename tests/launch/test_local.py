"""`launch/local.py`, with short programs in the place of the main job."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
LOCAL = [sys.executable, str(ROOT / "launch" / "local.py")]


@pytest.fixture
def folder(tmp_path):
    """Where `python -m endx_jax.main` finds the stand-in that `start` puts there."""
    (tmp_path / "endx_jax").mkdir()
    return tmp_path


def start(folder: pathlib.Path, program: str, *command: str) -> subprocess.Popen:
    (folder / "endx_jax" / "main.py").write_text(program)
    return subprocess.Popen([*command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(folder: pathlib.Path, program: str, *arguments: str) -> tuple[int, list[str]]:
    """Status and sorted lines."""
    with start(folder, program, *LOCAL, *arguments) as local:
        output, _ = local.communicate(timeout=60)
    return local.returncode, sorted(output.splitlines())


def test_every_process_knows_its_place(folder):
    program = """
import os, sys
names = ("PROCESS_ID", "NUM_PROCESSES", "NUM_CPU_DEVICES", "PLATFORMS", "COORDINATOR_ADDRESS")
print(*(os.environ["JAX_" + name] for name in names), *sys.argv[1:])
"""
    status, lines = run(folder, program, "--processes=3", "--devices=2", "--", "--config=a", "--config.b=2")
    address = lines[0].split()[5]
    assert address.startswith("localhost:")
    assert lines == [f"[{k}] {k} 3 2 cpu {address} --config=a --config.b=2" for k in range(3)]
    assert status == 0


def test_the_processes_find_each_other(folder):
    """The environment is what the package and JAX read: the devices of both processes add up."""
    program = f"""
import sys
del sys.modules["endx_jax"]
sys.path[0] = {str(ROOT)!r}
from endx_jax.parallel import distributed
distributed.initialize()
import jax
print(jax.device_count())
"""
    status, lines = run(folder, program, "--processes=2", "--devices=2")
    assert [line for line in lines if "Gloo" not in line] == ["[0] 4", "[1] 4"]
    assert status == 0


@pytest.mark.parametrize(("ending", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 128 + 9)])
def test_a_failure_stops_the_others(folder, ending, status):
    program = f"""
import os, pathlib, sys, time
if os.environ["JAX_PROCESS_ID"] == "1":
    while not pathlib.Path("waiting").exists():
        time.sleep(0.01)
    {ending}
try:
    pathlib.Path("waiting").touch()
    time.sleep(60)
except KeyboardInterrupt:
    print("told to stop")
"""
    assert run(folder, program, "--processes=2") == (status, ["[0] told to stop"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_all(folder, number):
    """As a shell's background job, too, which starts out ignoring interrupts."""
    program = """
import time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("told to stop")
"""
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *LOCAL]
    with start(folder, program, *ignoring, "--processes=2") as local:
        assert sorted(local.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
        local.send_signal(number)
        output, _ = local.communicate(timeout=60)
    assert sorted(output.splitlines()) == ["[0] told to stop", "[1] told to stop"]
    assert local.returncode == 130


def test_a_process_that_does_not_stop_is_killed(folder):
    program = """
import os, pathlib, signal, sys, time
if os.environ["JAX_PROCESS_ID"] == "1":
    while not pathlib.Path("waiting").exists():
        time.sleep(0.01)
    sys.exit(3)
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path("waiting").touch()
time.sleep(600)
"""
    patient = f"""
import sys
sys.path.insert(0, {str(ROOT / "launch")!r})
import local
local.PATIENCE = 0.5
sys.exit(local.main(["--processes=2"]))
"""
    started = time.monotonic()
    with start(folder, program, sys.executable, "-c", patient) as local:
        local.communicate(timeout=60)
    assert local.returncode == 3
    assert time.monotonic() - started < 30
