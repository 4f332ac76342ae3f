"""`launch/slurm.sh` as SLURM runs it, with stand-ins for srun, scontrol and endx: how a job starts and ends."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "launch" / "slurm.sh"

# Runs two tasks, each in a session of its own, labels their lines, and returns the highest status.
SRUN = f"""#!{sys.executable} -IS
import os, subprocess, sys, threading
command = sys.argv[sys.argv.index("bash"):]
print("srun", *sys.argv[1 : sys.argv.index("bash")], flush=True)
def task(rank):
    environment = os.environ | {{"SLURM_PROCID": str(rank)}}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
tasks = [task(rank) for rank in (0, 1)]
def label(rank):
    for line in tasks[rank].stdout:
        print(f"{{rank}}: {{line}}", end="", flush=True)
threads = [threading.Thread(target=label, args=(rank,)) for rank in (0, 1)]
[thread.start() for thread in threads]
statuses = [one.wait() for one in tasks]
[thread.join() for thread in threads]
sys.exit(max(status if status >= 0 else 128 - status for status in statuses))
"""
SCONTROL = '#!/bin/bash\necho "scontrol $*"\n'
# `--end=A,B` has process 0 end with A and process 1 with B; else both wait, save when they are told to stop, and
# end with STATUS.
ENDX = f"""#!{sys.executable} -IS
import os, signal, sys, time
rank = int(os.environ["SLURM_PROCID"])
if sys.argv[1].startswith("--end="):
    status = int(sys.argv[1][6:].split(",")[rank])
    os.kill(os.getpid(), 9) if status == 137 else sys.exit(status)
def save(*_):
    time.sleep(1 - 0.5 * rank)
    os.write(1, b"saved\\n")
    sys.exit(int(os.environ["STATUS"]))
signal.signal(signal.SIGTERM, save)
print(f"pid={{os.getppid()}}", sys.argv[1:], flush=True)
time.sleep(60)
"""


@pytest.fixture
def start(tmp_path):
    """Function that starts the script as the batch step of a job."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("endx", ENDX)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}

    def run(*arguments, **variables):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(["bash", SCRIPT, *arguments], env=os.environ | job | variables, **pipes)

    return run


@pytest.mark.parametrize(
    ("statuses", "tried", "status", "line"),
    [
        ("0,0", "0", 0, "launch/slurm.sh: ended with status 0"),
        ("75,75", "0", 0, "launch/slurm.sh: status 75; the job is requeued (restart 1 of 1)"),
        ("75,137", "0", 0, "launch/slurm.sh: status 137; the job is requeued (restart 1 of 1)"),
        ("75,75", "1", 75, "launch/slurm.sh: status 75 after 1 restarts; set ENDX_RESTARTS to allow more"),
        ("2,75", "0", 255, "0: launch/slurm.sh: process 0 on .* ended with status 2 and is not retried"),
        ("134,2", "0", 255, "1: launch/slurm.sh: process 1 on .* ended with status 2 and is not retried"),
        ("1,137", "0", 255, "0: launch/slurm.sh: process 0 on .* ended with status 1 and is not retried"),
    ],
)
def test_a_job_is_requeued_as_often_as_is_allowed_unless_a_process_made_a_mistake(start, statuses, tried, status, line):
    with start(f"--end={statuses}", ENDX_RESTARTS="1", SLURM_RESTART_COUNT=tried) as job:
        lines = job.communicate(timeout=60)[0].splitlines()
    assert job.returncode == status
    assert [one for one in lines if re.fullmatch(line.replace("(", r"\(").replace(")", r"\)"), one)], lines
    assert ("scontrol requeue 7" in lines) is ("the job is requeued" in line)


REQUEUED = ["launch/slurm.sh: status 75; the job is requeued (restart 1 of 100)", "scontrol requeue 7"]


@pytest.mark.parametrize(("status", "end"), [("75", REQUEUED), ("0", ["launch/slurm.sh: ended with status 0"])])
def test_told_to_stop_all_processes_save_and_the_job_is_requeued_unless_it_ended(start, status, end):
    arguments = ["train", "--config=a $b 'c'"]
    with start(*arguments, STATUS=status) as job:
        lines = [job.stdout.readline().strip() for _ in range(4)]
        tasks = [re.fullmatch(r"(\d): pid=(\d+) (.*)", line).groups() for line in sorted(lines[2:])]
        for _, pid, _ in tasks:  # SLURM signals all processes of a task
            os.killpg(int(pid), signal.SIGTERM)
        rest = job.communicate(timeout=60)[0].splitlines()
    assert lines[0] == "launch/slurm.sh: start 1 of job 7 on n[1-2]: endx train --config=a $b 'c'"
    # The others may still write when a process has ended; a node's one process uses all of its CPUs.
    assert lines[1] == "srun --kill-on-bad-exit=0 --wait=900 --cpu-bind=none --label"
    assert [(rank, given) for rank, _, given in tasks] == [(rank, str(arguments)) for rank in "01"]
    assert rest == [*(f"{rank}: saved" for rank in (1, 0)), *end]


def test_without_a_verb_nothing_is_started(start):
    with start() as job:
        assert job.communicate(timeout=60)[0].startswith("launch/slurm.sh: no verb; give the arguments of endx")
    assert job.returncode == 2
