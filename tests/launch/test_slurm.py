"""`launch/slurm.sh`, submitted to a SLURM of two nodes on this machine, with a stand-in for endx."""

import getpass
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from fake_buckets import free_port

pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).parents[2] / "launch" / "slurm.sh"
DAEMONS = ("munged", "slurmctld", "slurmd")
GPUS = 8
REQUEUED = "launch/slurm.sh: status {}; the job is requeued (restart {} of {})"

# Two partitions, one of which takes nodes from the other. What is queued again waits for the old credentials to expire.
CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=1,sched_interval=1
SlurmdParameters=config_overrides
KillWait=3
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 Gres=gpu:{gpus}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 Gres=gpu:{gpus}
PartitionName=spot Nodes=ALL Default=YES PriorityTier=1 PreemptMode=CANCEL GraceTime=10 MaxTime=INFINITE
PartitionName=paid Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE
"""

# Saves when it is told to stop, process 0 later than process 1, and ends with 75; goes on and is done in a folder where
# it has saved. `--end=A,B` has process 0 end with A and process 1 with B, by itself.
ENDX = f"""#!{sys.executable} -IS
import os, pathlib, signal, sys, time
rank = int(os.environ["SLURM_PROCID"])
workdir = pathlib.Path(sys.argv[-1])
saved = workdir / f"saved-{{rank}}"
if saved.exists():
    print("goes on:", *sys.argv[1:], flush=True)
    sys.exit(0)
def stop(*_):
    print("told to stop", flush=True)
    time.sleep(1 - rank)
    saved.touch()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
(workdir / f"pid-{{rank}}").write_text(str(os.getpid()))
if sys.argv[1].startswith("--end="):
    time.sleep(rank)
    sys.exit(int(sys.argv[1][6:].split(",")[rank]))
time.sleep(60)
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Function that runs a command of a cluster of two nodes and returns what it prints."""
    missing = [name for name in DAEMONS if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o600)
    for k in range(GPUS):
        (folder / f"gpu{k}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    names = {"host": socket.gethostname().split(".")[0], "user": getpass.getuser(), "folder": folder, "gpus": GPUS}
    (folder / "slurm.conf").write_text(CONFIGURATION.format(ports=[free_port() for _ in range(3)], **names))
    (folder / "endx").write_text(ENDX)
    (folder / "endx").chmod(0o755)
    paths = [f"--key-file={folder}/key", f"--socket={folder}/munge", f"--pid-file={folder}/munge.pid"]
    paths += [f"--seed-file={folder}/seed", "--log-file=/dev/stderr"]
    commands = [["munged", "--foreground", "--force", *paths], ["slurmctld", "-D"]]
    commands += [["slurmd", "-D", "-N", node] for node in ("n1", "n2")]
    own = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder}:{os.environ['PATH']}"}
    daemons = []

    def run(*command: str, cwd: pathlib.Path | None = None) -> str:
        options = {"cwd": cwd, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run(command, env=os.environ | own, **options).stdout.strip()

    with (folder / "log").open("w") as log:
        try:
            for command in commands:
                daemons.append(subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log))
            try:
                wait_for(lambda: run("sinfo", "-h", "-N", "-p", "spot", "-o", "%T") == "idle\nidle")
            except AssertionError:  # of the system, and not of what is tested
                said = (folder / "log").read_text().splitlines()
                pytest.skip(f"SLURM does not come up here: {said[-1] if said else 'without a word'}")
            yield run
            run("scancel", "--user", names["user"])
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
            for daemon in daemons:
                daemon.wait(30)


def wait_for(condition, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Job:
    """`endx ... WORKDIR`, submitted with the script as it is."""

    def __init__(self, ask, workdir: pathlib.Path, *arguments: str):
        self.ask, self.workdir = ask, workdir
        self.number = ask("sbatch", "--parsable", str(SCRIPT), *arguments, str(workdir), cwd=workdir)
        assert self.number.isdecimal()

    def running(self) -> "Job":
        wait_for(lambda: all((self.workdir / f"pid-{k}").exists() for k in (0, 1)))
        return self

    def kill(self, process: int, number: int) -> None:
        os.kill(int((self.workdir / f"pid-{process}").read_text()), number)

    def ended(self) -> str:
        """How the job ended: its state and status."""
        wait_for(lambda: self.ask("squeue", "-h", "-j", self.number) == "")
        shown = dict(re.findall(r"(\w+)=(\S+)", self.ask("scontrol", "show", "job", self.number)))
        return f"{shown['JobState']} {shown['ExitCode']} restarts={shown['Restarts']}"

    def log(self) -> list[str]:
        return (self.workdir / f"endx-{self.number}.log").read_text().splitlines()


def test_told_to_stop_it_saves_and_is_queued_again_with_its_arguments(ask, tmp_path):
    job = Job(ask, tmp_path, "train", "--config=a $b 'c'").running()
    ask("scancel", "--signal=TERM", job.number)
    assert job.ended() == "COMPLETED 0:0 restarts=1"
    lines = {
        f"{k}: {line}" for k in (0, 1) for line in ("told to stop", f"goes on: train --config=a $b 'c' {tmp_path}")
    }
    assert lines | {REQUEUED.format(75, 1, 100)} <= set(job.log())


def test_a_killed_process_is_another_try_and_the_other_may_save(ask, tmp_path):
    job = Job(ask, tmp_path, "train").running()
    job.kill(1, signal.SIGKILL)
    time.sleep(1)
    assert ask("squeue", "-h", "-j", job.number, "-o", "%T") == "RUNNING"
    job.kill(0, signal.SIGTERM)
    (tmp_path / "saved-1").touch()
    assert job.ended() == "COMPLETED 0:0 restarts=1"
    assert REQUEUED.format(137, 1, 100) in job.log()


def test_its_nodes_are_taken_away_for_another_job(ask, tmp_path):
    job = Job(ask, tmp_path, "train").running()
    ask("sbatch", "--partition=paid", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    assert job.ended() == "COMPLETED 0:0 restarts=1"
    assert REQUEUED.format(75, 1, 100) in job.log()


def test_cancelled_it_saves_and_stays_away(ask, tmp_path):
    job = Job(ask, tmp_path, "train").running()
    ask("scancel", job.number)
    assert job.ended().startswith("CANCELLED")
    assert not [line for line in job.log() if "requeued" in line]
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-0", "saved-1"}


@pytest.mark.parametrize(
    ("statuses", "end", "line"),
    [
        ("2,75", "FAILED 255:0 restarts=0", "ended with status 2 and is not retried"),
        ("75,2", "FAILED 255:0 restarts=0", "ended with status 2 and is not retried"),
        ("1,137", "FAILED 255:0 restarts=0", "ended with status 1 and is not retried"),
        ("75,75", "FAILED 75:0 restarts=1", "status 75 after 1 restarts; set ENDX_RESTARTS"),
    ],
)
def test_a_mistake_is_not_another_try_and_tries_are_counted(ask, tmp_path, monkeypatch, statuses, end, line):
    monkeypatch.setenv("ENDX_RESTARTS", "1")
    job = Job(ask, tmp_path, f"--end={statuses}")
    assert job.ended() == end
    assert [one for one in job.log() if line in one]


def test_without_a_verb_nothing_is_started():
    done = subprocess.run(["bash", SCRIPT], capture_output=True, text=True)
    assert done.stderr.startswith("launch/slurm.sh: no verb; give the arguments of endx")
    assert done.returncode == 2
