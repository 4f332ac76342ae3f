"""`launch/tpu/vm.sh`, with a stand-in for gcloud that plays a slice, and what it has the workers do."""

import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
VM = ROOT / "launch" / "tpu" / "vm.sh"
LINE = "w-{{}} ActiveState={} ExecMainCode={} ExecMainStatus={} Result={} SubState={}"
RUNNING, DONE = LINE.format("active", 0, 0, "success", "running"), LINE.format("active", 1, 0, "success", "exited")
AGAIN = LINE.format("activating", 1, 75, "exit-code", "auto-restart")
STOPPED, MISTAKE = (LINE.format("failed", 1, status, "exit-code", "failed") for status in (75, 2))
TOO_OFTEN = LINE.format("failed", 1, 75, "start-limit-hit", "failed")
CREATE, DELETE = "queued-resources create", "queued-resources delete"

# Notes its arguments; `states` and `looks` are what it answers, one after the other, the last again and again.
GCLOUD = f"""#!{sys.executable} -IS
import json, sys
here = {{here!r}}
arguments = sys.argv[1:]
with open(here + "/calls", "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
def answer(name):
    with open(here + name) as file:
        answers = json.load(file)
    if len(answers) > 1:
        with open(here + name, "w") as file:
            json.dump(answers[1:], file)
    print(answers[0] or "") if answers[0] is not None else sys.exit("cannot be reached")
what = " ".join(arguments[2:4])
if what == "queued-resources describe":
    answer("/states")
if what == "tpu-vm ssh" and "systemctl show" in arguments[-2]:
    answer("/looks")
if what == "tpu-vm scp":
    for file in arguments[4:]:
        if file.startswith("/"):
            with open(file) as source, open(here + "/copied/" + file.rpartition("/")[2], "w") as copy:
                copy.write(source.read())
"""
# For setup: a wheel at once.
PIP = '#!/bin/bash\n[[ $* != *"--wheel-dir"* ]] || touch "${@: -2:1}/endx_jax-1-py3-none-any.whl"\n'


class Slice:
    """The script, and what it does with a slice."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        for name in ("bin", "copied"):
            (folder / name).mkdir()
        for name, text in (("gcloud", GCLOUD.format(here=str(folder))), ("python3", PIP)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def do(self, *arguments: str, states=("ACTIVE",), looks=(), **environment: str) -> tuple[int, list[str]]:
        """Status and lines; a worker's state is a line, and None is a worker that can't be reached."""
        shown = [None if look is None else "\n".join(line.format(k) for k, line in enumerate(look)) for look in looks]
        (self.folder / "states").write_text(json.dumps(states))
        (self.folder / "looks").write_text(json.dumps(shown))
        settings = {"ZONE": "z", "ACCELERATOR_TYPE": "v6e-16", "ENDX_PAUSE": "0"}
        settings |= {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **environment}
        # `keep` starts the script again, which it finds though it was started by its bare name.
        command = ["bash", VM.name] if arguments[:1] == ("keep",) else [VM]
        process = {"cwd": VM.parent, "env": settings, "capture_output": True, "text": True, "timeout": 60}
        done = subprocess.run([*command, *arguments], **process)
        return done.returncode, [line.removeprefix("launch/tpu/vm.sh: ") for line in done.stderr.splitlines()]

    def calls(self, *words: str) -> list[list[str]]:
        """Arguments of the calls that begin so."""
        calls = self.folder / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [call for call in map(json.loads, lines) if call[: len(words) + 2] == ["compute", "tpus", *words]]

    def remote(self) -> list[str]:
        """The commands that all workers ran, which are valid for bash."""
        calls = self.calls("tpu-vm", "ssh")
        assert all("--worker=all" in call for call in calls)
        commands = [part[10:] for call in calls for part in call if part.startswith("--command=")]
        assert subprocess.run(["bash", "-n"], input="\n".join(commands), capture_output=True, text=True).stderr == ""
        return commands

    def changes(self) -> list[str]:
        """What was created and deleted, in order."""
        done = [" ".join(call[2:4]) for call in self.calls()]
        return [what for what in done if what in (CREATE, DELETE)]


@pytest.fixture
def slice_(tmp_path):
    return Slice(tmp_path)


def test_create_asks_once_with_the_software_of_the_chip_and_waits(slice_):
    states = ["", "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    waited = [f"endx is {state}" for state in states[2:4]]
    assert slice_.do("create", states=states, SPOT="1", PROJECT="p") == (0, waited)
    request = f"compute tpus {CREATE} endx --quiet --node-id=endx --accelerator-type={{}} --runtime-version={{}}"
    expected = [[*request.format("v6e-16", "v2-alpha-tpuv6e").split(), "--spot", "--zone=z", "--project=p"]]
    software = {"v5p-32": "v2-alpha-tpuv5", "v4-32": "tpu-ubuntu2204-base", "v5litepod-16": "v2-alpha-tpuv5-lite"}
    for chips, version in software.items():
        slice_.do("create", states=["", "ACTIVE"], ACCELERATOR_TYPE=chips, SERVICE_ACCOUNT="endx@p")
        expected.append([*request.format(chips, version).split(), "--service-account=endx@p", "--zone=z"])
    assert slice_.calls(*CREATE.split()) == expected


def test_create_finds_the_slice_there_and_does_not_wait_for_what_will_not_come(slice_):
    assert slice_.do("create") == (0, [])
    for state in ("FAILED", "SUSPENDED"):
        assert slice_.do("create", states=["PROVISIONING", state]) == (1, [f"endx is {state}"])
    assert slice_.changes() == []


@pytest.mark.parametrize("nfs", ["", "10.0.0.2:/runs"])
def test_setup_brings_the_wheel_and_the_service_and_mounts_nfs_where_it_is_set(slice_, nfs):
    assert slice_.do("setup", NFS=nfs) == (0, [])
    copied = {file.name for file in (slice_.folder / "copied").iterdir()}
    assert copied == {"endx_jax-1-py3-none-any.whl", "endx.service"}
    assert "[tpu,gcs]" in slice_.remote()[-1]
    mounts = [f"'{nfs} /runs nfs defaults,_netdev 0 0'" in command for command in slice_.remote()[1:-1]]
    assert mounts == [True] * bool(nfs)


def test_run_starts_the_very_arguments(slice_):
    arguments = ["train", "--config=t5:xl,sde", "--config.a=it's $HOME; `x`", "--workdir=/runs/a b", ""]
    assert slice_.do("run", *arguments) == (0, [])
    (start,) = (slice_.folder / "copied").iterdir()
    endx = shlex.join([sys.executable, "-c", "import sys; print(sys.argv[1:])"])
    here = start.read_text().replace("/opt/endx/venv/bin/endx", endx)
    assert subprocess.run(["bash", "-c", here], capture_output=True, text=True).stdout.strip() == str(arguments)
    (command,) = slice_.remote()
    assert "systemctl restart endx" in command


# States of the slice, what its workers show, whether it is created and deleted or what else, status, and other lines.
NEW, OLD = [CREATE, DELETE], [DELETE]
KEPT = {
    "until all workers are done": (
        ["", "ACTIVE"], [[RUNNING, RUNNING], [AGAIN, RUNNING], [DONE, RUNNING], [DONE, DONE]], NEW, [0], [],
    ),
    "again after it was taken away": (
        ["", "ACTIVE", "ACTIVE", "SUSPENDED", "", "ACTIVE"], [[RUNNING], [DONE]], NEW * 2, [75, 0], [],
    ),
    "as often as is allowed": (["", "ACTIVE", "SUSPENDED"] * 2, [[RUNNING]], NEW * 2, [75, 75], []),
    "again after its machines were shut down": (
        ["", "ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDED", "", "ACTIVE"],
        [[RUNNING, RUNNING], [STOPPED, STOPPED], [DONE, DONE]], NEW * 2, [75, 0], [],
    ),
    "until it is stopped": (["ACTIVE"], [[STOPPED, STOPPED]], OLD, [1], ["endx was stopped"]),
    "until a user error": (
        ["ACTIVE"], [[AGAIN, MISTAKE]], OLD, [1], [f"not retried, or retried too often: {MISTAKE.format(1)}"],
    ),
    "until a worker has restarted too often": (
        ["ACTIVE"], [[AGAIN, TOO_OFTEN]], OLD, [1], [f"not retried, or retried too often: {TOO_OFTEN.format(1)}"],
    ),
    "though it can't be reached for a while": (
        ["ACTIVE", "", "", "ACTIVE"], [None, None, [RUNNING], [DONE]], OLD, [0], ["cannot be reached"] * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", KEPT)
def test_keep_looks_after_a_run(slice_, how):
    states, looks, changes, ends, lines = KEPT[how]
    found = slice_.do("keep", "train", "--config=a", states=states, looks=looks, ENDX_RESTARTS="1")
    ended = [f"start {n} ended with status {end}; deleting endx" for n, end in enumerate(ends, 1)]
    assert found == (ends[-1], lines + ended)
    assert slice_.changes() == changes
    assert all("--force" in call for call in slice_.calls(*DELETE.split()))


ACTIONS = "use create, setup, run, logs, status, stop, delete or keep"
MISTAKES = {
    "": f"unknown action (none); {ACTIONS}",
    "strat": f"unknown action strat; {ACTIONS}",
    "run": "run: no verb; give the arguments of endx, such as: run train --config=t5:xl,sde",
    "keep": "keep: no verb; give the arguments of endx, such as: keep train --config=t5:xl,sde",
    "status ZONE": "ZONE: is not set; set the zone, such as ZONE=us-east5-b",
    "create ACCELERATOR_TYPE": "is not set; set the type, such as ACCELERATOR_TYPE=v6e-16",
}


def test_mistakes_are_one_line_and_cost_nothing(slice_):
    for action, named in MISTAKES.items():
        arguments, missing = action.split()[:1], action.split()[1:]
        status, (line,) = slice_.do(*arguments, **dict.fromkeys(missing, ""))
        assert (status in (1, 2), line.endswith(named)) == (True, True), line
    assert slice_.calls() == []
