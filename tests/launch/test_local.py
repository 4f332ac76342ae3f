"""`launch/local.py`, with short programs in the place of endx."""

import contextlib
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[2]
LOCAL = [sys.executable, str(ROOT / "launch" / "local.py")]

# How endx ends when it is told to stop: process 0 still writes while process 1 is done.
SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.4 * (os.environ["JAX_PROCESS_ID"] == "0"))
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
"""


@pytest.fixture
def folder(tmp_path):
    """Where `python -m endx_jax` finds the stand-in that `start` puts there."""
    (tmp_path / "endx_jax").mkdir()
    (tmp_path / "endx_jax" / "__init__.py").touch()
    return tmp_path


@contextlib.contextmanager
def start(folder: pathlib.Path, program: str, *command: str):
    """The command as a process; stopped where the test fails."""
    (folder / "endx_jax" / "__main__.py").write_text(program)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([*command], cwd=folder, **options) as local:
        try:
            yield local
        finally:
            local.terminate()


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
    assert lines == [f"[{k}] {k} 3 2 cpu {address} train --config=a --config.b=2" for k in range(3)]
    assert status == 0


def test_any_verb(folder):
    lines = run(folder, "import sys\nprint(sys.argv[1:])", "--processes=1", "--", "evaluate", "--workdir=a")[1]
    assert lines == ["[0] ['evaluate', '--workdir=a']"]


@pytest.mark.slow
def test_the_processes_find_each_other(folder):
    program = f"""
import sys
del sys.modules["endx_jax"]
sys.path[0] = {str(ROOT)!r}
from endx_jax.parallel import distributed
distributed.initialize()
import jax
print(jax.device_count())
"""
    assert run(folder, program, "--processes=2", "--devices=2") == (0, ["[0] 4", "[1] 4"])


@pytest.mark.parametrize(
    ("ending", "number", "reported"),
    [("sys.exit(7)", 7, []), ("os.kill(os.getpid(), 9)", 128 + 9, ["launch/local.py: process 1 was killed (SIGKILL)"])],
)
def test_after_a_failure_the_others_end_by_themselves_and_nobody_is_interrupted(folder, ending, number, reported):
    program = f"""
import os, pathlib, sys, time
if os.environ["JAX_PROCESS_ID"] == "1":
    while not pathlib.Path("waiting").exists():
        time.sleep(0.01)
    {ending}
try:
    pathlib.Path("waiting").touch()
    time.sleep(1)
    print("process 1 failed")
except KeyboardInterrupt:
    print("told to stop")
"""
    assert run(folder, program, "--processes=2") == (number, ["[0] process 1 failed", *reported])


def test_an_interrupt_stops_all(folder):
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
        local.send_signal(signal.SIGINT)
        output, _ = local.communicate(timeout=60)
    assert sorted(output.splitlines()) == ["[0] told to stop", "[1] told to stop"]
    assert local.returncode == 130


def test_told_to_stop_all_save_and_nothing_is_restarted(folder):
    program = SAVES + 'print("ready", flush=True)\ntime.sleep(60)'
    with start(folder, program, *LOCAL, "--processes=2", "--restarts=3") as local:
        assert sorted(local.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
        local.send_signal(signal.SIGTERM)
        output, _ = local.communicate(timeout=60)
    assert output.splitlines() == ["[1] saved", "[0] saved"]
    assert local.returncode == 75


def test_told_to_stop_before_a_process_listens_is_no_failure(folder):
    with start(folder, 'print("ready", flush=True)\nimport time; time.sleep(60)', *LOCAL) as local:
        assert sorted(local.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
        local.send_signal(signal.SIGTERM)
        local.communicate(timeout=60)
    assert local.returncode == 75


def test_one_process_told_to_stop_leaves_the_other_its_time(folder):
    program = SAVES + "save()"
    assert run(folder, program) == (75, ["[0] saved", "[1] saved"])


def test_a_mistake_is_told_from_the_processes_that_then_stop(folder):
    program = """
import os, sys, time
if os.environ["JAX_PROCESS_ID"] == "0":
    sys.exit(75)
time.sleep(0.3)
print("no such file")
sys.exit(2)
"""
    assert run(folder, program, "--restarts=3") == (2, ["[1] no such file"])


def test_a_user_error_is_not_restarted_though_jax_aborts_the_other_process(folder):
    program = """
import os, pathlib, sys, time
if os.environ["JAX_PROCESS_ID"] == "1":
    pathlib.Path("refused").touch()
    sys.exit(2)
while not pathlib.Path("refused").exists():
    time.sleep(0.01)
time.sleep(0.1)
os.abort()
"""
    status, _ = run(folder, program, "--restarts=3")
    assert status == 2


@pytest.mark.parametrize(("ending", "number"), [("sys.exit(75)", 75), ("os.abort()", 128 + 6)])
def test_restarts_go_on_until_the_run_ends_well(folder, ending, number):
    program = f"""
import os, pathlib, sys
with open("starts", "a+") as starts:
    starts.write("x")
    starts.seek(0)
    if len(starts.read()) < 3:
        starts.close()
        {ending}
print("done")
"""
    status, lines = run(folder, program, "--processes=1", "--restarts=5")
    assert [line for line in lines if "was killed" not in line] == [
        "[0] done",
        f"launch/local.py: status {number}; restart 1 of 5",
        f"launch/local.py: status {number}; restart 2 of 5",
    ]
    assert status == 0


@pytest.mark.parametrize(("status", "starts"), [(75, 3), (1, 1), (2, 1)])
def test_restarts_are_counted_and_user_errors_are_not_restarted(folder, status, starts):
    program = f"import sys\nprint('x')\nsys.exit({status})"
    found, lines = run(folder, program, "--processes=1", "--restarts=2")
    assert (found, lines.count("[0] x")) == (status, starts)


@pytest.mark.parametrize(("option", "least"), [("--devices=1.5", 1), ("--processes=0", 1), ("--restarts=-1", 0)])
def test_numbers_are_checked(folder, option, least):
    status, lines = run(folder, "", option)
    assert (status, any(f"is not a whole number of at least {least}" in line for line in lines)) == (2, True)


@pytest.mark.parametrize(("told", "status", "grace"), [(0, 3, 120), (0, 75, 0.5), (signal.SIGTERM, 0, 0.5)])
def test_a_process_that_does_not_stop_or_save_in_time_is_killed(folder, told, status, grace):
    program = f"""
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["JAX_PROCESS_ID"] == "1":
    while not pathlib.Path("waiting").exists():
        time.sleep(0.01)
    os.kill(os.getppid(), {int(told)})
    sys.exit({status})
signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path("waiting").touch()
time.sleep(600)
"""
    launcher = f"""
import sys
sys.path.insert(0, {str(ROOT / "launch")!r})
import local
local.PATIENCE, local.GRACE = 0.5, {grace}
sys.exit(local.main(["--processes=2"]))
"""
    started = time.monotonic()
    with start(folder, program, sys.executable, "-c", launcher) as local:
        assert local.communicate(timeout=60)[0] == ""
    assert local.returncode == (status or 75)
    assert time.monotonic() - started < 30
