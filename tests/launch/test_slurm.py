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
def cluster(tmp_path_factory):
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
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{folder}:{os.environ['PATH']}"}
    daemons = []
    with (folder / "log").open("w") as log:
        try:
            for command in commands:
                daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            cluster = Cluster(environment)
            try:
                wait_for(lambda: cluster.ask("sinfo", "-h", "-N", "-p", "spot", "-o", "%T") == "idle\nidle")
            except AssertionError:  # of the system, and not of what is tested
                said = (folder / "log").read_text().splitlines()
                pytest.skip(f"SLURM does not come up here: {said[-1] if said else 'without a word'}")
            yield cluster
            cluster.ask("scancel", "--user", names["user"])
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


class Cluster:
    def __init__(self, environment: dict[str, str]):
        self.environment = environment

    def ask(self, *command: str, cwd: pathlib.Path | None = None) -> str:
        done = subprocess.run(command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=60)
        return done.stdout.strip()


class Job:
    """`endx train ... WORKDIR`, submitted with the script as it is."""

    def __init__(self, cluster: Cluster, workdir: pathlib.Path, *arguments: str, **environment: str):
        self.cluster, self.workdir = Cluster(cluster.environment | environment), workdir
        self.number = self.cluster.ask("sbatch", "--parsable", str(SCRIPT), *arguments, str(workdir), cwd=workdir)
        assert self.number.isdecimal()

    def running(self) -> "Job":
        wait_for(lambda: all((self.workdir / f"pid-{k}").exists() for k in (0, 1)))
        return self

    def kill(self, process: int) -> None:
        os.kill(int((self.workdir / f"pid-{process}").read_text()), signal.SIGKILL)

    def ended(self) -> str:
        """How the job ended: its state and status."""
        wait_for(lambda: self.cluster.ask("squeue", "-h", "-j", self.number) == "")
        shown = dict(re.findall(r"(\w+)=(\S+)", self.cluster.ask("scontrol", "show", "job", self.number)))
        return f"{shown['JobState']} {shown['ExitCode']} restarts={shown['Restarts']}"

    def log(self) -> list[str]:
        return (self.workdir / f"endx-{self.number}.log").read_text().splitlines()


def test_told_to_stop_it_saves_and_is_queued_again(cluster, tmp_path):
    job = Job(cluster, tmp_path, "train", "--config=a $b 'c'").running()
    cluster.ask("scancel", "--signal=TERM", job.number)
    assert job.ended() == "COMPLETED 0:0 restarts=1"
    log = job.log()
    assert {f"{k}: told to stop" for k in (0, 1)} <= set(log)
    assert REQUEUED.format(75, 1, 100) in log
    assert {f"{k}: goes on: train --config=a $b 'c' {tmp_path}" for k in (0, 1)} <= set(log)


def test_a_killed_process_is_another_try(cluster, tmp_path):
    job = Job(cluster, tmp_path, "train").running()
    job.kill(1)
    time.sleep(1)
    assert cluster.ask("squeue", "-h", "-j", job.number, "-o", "%T") == "RUNNING"
    os.kill(int((tmp_path / "pid-0").read_text()), signal.SIGTERM)
    (tmp_path / "saved-1").touch()
    assert job.ended() == "COMPLETED 0:0 restarts=1"
    assert REQUEUED.format(137, 1, 100) in job.log()


def test_taken_away_for_another_job(cluster, tmp_path):
    job = Job(cluster, tmp_path, "train").running()
    cluster.ask("sbatch", "--partition=paid", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
    assert job.ended() == "COMPLETED 0:0 restarts=1"
    assert REQUEUED.format(75, 1, 100) in job.log()


def test_cancelled_it_saves_and_stays_away(cluster, tmp_path):
    job = Job(cluster, tmp_path, "train").running()
    cluster.ask("scancel", job.number)
    assert job.ended().startswith("CANCELLED")
    assert not [line for line in job.log() if "requeued" in line]
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-0", "saved-1"}


@pytest.mark.parametrize("ends", ["2,75", "75,2", "1,137"])
def test_a_mistake_of_one_process_is_not_another_try(cluster, tmp_path, ends):
    job = Job(cluster, tmp_path, f"--end={ends}")
    assert job.ended() == "FAILED 255:0 restarts=0"
    status = min(ends.split(","), key=int)
    assert [line for line in job.log() if f"ended with status {status} and is not retried" in line]


def test_tries_are_counted(cluster, tmp_path):
    job = Job(cluster, tmp_path, "--end=75,75", ENDX_RESTARTS="1")
    assert job.ended() == "FAILED 75:0 restarts=1"
    log = job.log()
    assert REQUEUED.format(75, 1, 1) in log
    assert log[-1] == "launch/slurm.sh: status 75, and 1 restarts were used; ENDX_RESTARTS allows more"


def test_without_a_verb_nothing_is_started():
    done = subprocess.run(["bash", SCRIPT], capture_output=True, text=True)
    assert done.stderr.startswith("launch/slurm.sh: no verb; give the arguments of endx")
    assert done.returncode == 2
