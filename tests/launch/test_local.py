"""`launch/local.py`, with short programs in place of endx: the place of each process, and how a run ends."""

import contextlib
import pathlib
import subprocess
import sys
from signal import SIGINT, SIGTERM

import pytest

ROOT = pathlib.Path(__file__).parents[2]
LOCAL = [sys.executable, str(ROOT / "launch" / "local.py")]
RESTARTED = "launch/local.py: status {}; restart {} of {}"
KILLED = "launch/local.py: process {} was killed ({})"

# The beginning of every program. `save` is how endx ends when it is told to stop; process 0 takes longer to write.
PRELUDE = """
import os, pathlib, signal, sys, time
rank = int(os.environ["JAX_PROCESS_ID"])
def say(*words):
    print(*words, flush=True)
def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
def save(*_):
    time.sleep(0.4 * (rank == 0))
    say("saved")
    sys.exit(75)
def starts():
    with open("starts", "a+") as file:
        file.write("x")
        return file.tell()
"""
WAITS = "try:\n    say('ready')\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    say('told to stop')"
SAVES = "signal.signal(signal.SIGTERM, save)\n" + WAITS
SURVIVES = "pathlib.Path('waiting').touch()\ntime.sleep(1)\nsay('process 1 failed')"
STUCK = "for number in (signal.SIGTERM, signal.SIGINT):\n    signal.signal(number, signal.SIG_IGN)\n"
STUCK += "pathlib.Path('waiting').touch()\ntime.sleep(600)"


@contextlib.contextmanager
def start(folder: pathlib.Path, programs: tuple[str, ...], *flags: str, command=LOCAL):
    """The launcher, whose process k runs the program k; a shell lets it ignore interrupts, as background jobs do."""
    (folder / "endx_jax").mkdir()
    (folder / "endx_jax" / "__init__.py").touch()
    for rank, program in enumerate(programs):
        (folder / f"{rank}.py").write_text(PRELUDE + program)
    (folder / "endx_jax" / "__main__.py").write_text(
        "import os\nexec(open(os.environ['JAX_PROCESS_ID'] + '.py').read())"
    )
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command, f"--processes={len(programs)}", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(ignoring, cwd=folder, **pipes) as launcher:
        try:
            yield launcher
        finally:
            launcher.terminate()


def run(folder, programs, *flags, **options) -> tuple[int, list[str]]:
    """Status and sorted lines."""
    with start(folder, programs, *flags, **options) as launcher:
        output, _ = launcher.communicate(timeout=60)
    return launcher.returncode, sorted(output.splitlines())


def test_every_process_knows_its_place_and_gets_the_arguments_of_train_or_of_another_verb(tmp_path):
    names = ("PROCESS_ID", "NUM_PROCESSES", "NUM_CPU_DEVICES", "PLATFORMS", "COORDINATOR_ADDRESS")
    program = f"say(*(os.environ['JAX_' + name] for name in {names}), *sys.argv[1:])"
    status, lines = run(tmp_path, (program,) * 3, "--devices=2", "--", "--config=a", "--config.b=2")
    address = lines[0].split()[5]
    assert address.startswith("localhost:")
    assert lines == [f"[{k}] {k} 3 2 cpu {address} train --config=a --config.b=2" for k in range(3)]
    assert status == 0
    (tmp_path / "verb").mkdir()
    lines = run(tmp_path / "verb", ("say(sys.argv[1:])",), "--", "evaluate", "--workdir=a")[1]
    assert lines == ["[0] ['evaluate', '--workdir=a']"]


# Programs of the processes, number of restarts that is allowed, status of the launcher, and its lines.
ENDINGS = {
    "a failure ends the run, and the others end by themselves": (
        (SURVIVES, "wait_for('waiting')\nsys.exit(7)"), 0, 7, ["[0] process 1 failed"],
    ),
    "a kill is a failure that is reported": (
        (SURVIVES, "wait_for('waiting')\nos.kill(os.getpid(), 9)"), 0, 137,
        ["[0] process 1 failed", KILLED.format(1, "SIGKILL")],
    ),
    "a process that saves has its time": (("save()",) * 2, 0, 75, ["[0] saved", "[1] saved"]),
    "a user error comes before the stop that follows": (
        ("sys.exit(75)", "time.sleep(0.3)\nsay('no such file')\nsys.exit(2)"), 3, 2, ["[1] no such file"],
    ),
    "a stopped run is restarted until it ends well": (
        ("sys.exit(75) if starts() < 3 else say('done')",), 5, 0,
        ["[0] done", RESTARTED.format(75, 1, 5), RESTARTED.format(75, 2, 5)],
    ),
    "an aborted run is restarted": (
        ("os.abort() if starts() < 2 else say('done')",), 5, 0,
        ["[0] done", KILLED.format(0, "SIGABRT"), RESTARTED.format(134, 1, 5)],
    ),
    "restarts are counted": (
        ("say('x')\nsys.exit(75)",), 2, 75, ["[0] x"] * 3 + [RESTARTED.format(75, n, 2) for n in (1, 2)],
    ),
    "a user error is not restarted": (("say('x')\nsys.exit(2)",), 2, 2, ["[0] x"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDINGS)
def test_a_run_ends(name, tmp_path):
    programs, restarts, status, lines = ENDINGS[name]
    assert run(tmp_path, programs, f"--restarts={restarts}") == (status, lines)


@pytest.mark.parametrize(
    ("number", "program", "status", "lines"),
    [
        (SIGINT, WAITS, 130, ["[0] told to stop", "[1] told to stop"]),
        (SIGTERM, SAVES, 75, ["[0] saved", "[1] saved"]),
        (SIGTERM, WAITS, 75, [KILLED.format(rank, "SIGTERM") for rank in (0, 1)]),  # before a process listens
    ],
    ids=["an interrupt", "SIGTERM", "early SIGTERM"],
)
def test_a_signal_stops_all_processes_and_nothing_is_restarted(number, program, status, lines, tmp_path):
    with start(tmp_path, (program,) * 2, "--restarts=3") as launcher:
        assert sorted(launcher.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
        launcher.send_signal(number)
        output, _ = launcher.communicate(timeout=60)
    assert (launcher.returncode, sorted(output.splitlines())) == (status, lines)


@pytest.mark.parametrize(("told", "status", "grace"), [(0, 3, 120), (0, 75, 0.5), (SIGTERM, 0, 0.5)])
def test_a_process_that_does_not_stop_or_save_in_time_is_killed(told, status, grace, tmp_path):
    ends = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwait_for('waiting')\nos.kill(os.getppid(), {int(told)})\n"
    launcher = f"import sys\nsys.path.insert(0, {str(ROOT / 'launch')!r})\nimport local\n"
    launcher += f"local.PATIENCE, local.GRACE = 0.5, {grace}\nsys.exit(local.main(sys.argv[1:]))"
    programs = STUCK, f"{ends}sys.exit({status})"
    assert run(tmp_path, programs, command=[sys.executable, "-c", launcher]) == (status or 75, [])


def test_an_option_that_is_no_number_is_refused():
    for name, value, least in (("--devices", "1.5", 1), ("--processes", "0", 1), ("--restarts", "-1", 0)):
        done = subprocess.run([*LOCAL, f"{name}={value}"], capture_output=True, text=True)
        assert done.returncode == 2
        assert f"{name}: {value} is not a whole number of at least {least}" in done.stderr
