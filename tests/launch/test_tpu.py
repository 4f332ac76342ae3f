"""`launch/tpu/vm.sh`, with a stand-in for gcloud that plays a slice, and what it has the workers do."""

import json
import os
import pathlib
import shlex
import shutil
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


@pytest.fixture
def slice_(tmp_path):
    return Slice(tmp_path)


class Slice:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "copied").mkdir()
        (folder / "bin" / "gcloud").write_text(GCLOUD.format(here=str(folder)))
        (folder / "bin" / "gcloud").chmod(0o755)

    def do(self, *arguments: str, states=("ACTIVE",), looks=(), **environment: str) -> tuple[int, str]:
        """Status, and what it said."""
        (self.folder / "states").write_text(json.dumps(states))
        (self.folder / "looks").write_text(json.dumps(["\n".join(look) if look else None for look in looks]))
        # pip, for setup: a wheel at once.
        python = self.folder / "bin" / "python3"
        python.write_text(
            '#!/bin/bash\n[[ $* != *"--wheel-dir"* ]] || touch "${@: -2:1}/endx_jax-1-py3-none-any.whl"\n'
        )
        python.chmod(0o755)
        settings = {"ZONE": "z", "ACCELERATOR_TYPE": "v6e-16", "ENDX_PAUSE": "0"}
        settings |= {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **environment}
        done = subprocess.run([VM, *arguments], env=settings, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    def calls(self, *words: str) -> list[list[str]]:
        """Arguments of the calls that begin so."""
        calls = self.folder / "calls"
        lines = calls.read_text().splitlines() if calls.exists() else []
        return [call for call in map(json.loads, lines) if call[: len(words) + 2] == ["compute", "tpus", *words]]

    def order(self) -> list[str]:
        """What was done, but for looking."""
        done = [" ".join(call[2:4]) for call in self.calls()]
        return [what for what in done if what not in ("queued-resources describe", "tpu-vm ssh", "tpu-vm scp")]


def test_create_asks_once_and_waits(slice_):
    states = ["", "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    status, said = slice_.do("create", states=states, SPOT="1", PROJECT="p")
    assert slice_.calls("queued-resources", "create") == [
        "compute tpus queued-resources create endx --quiet --node-id=endx --accelerator-type=v6e-16 "
        "--runtime-version=v2-alpha-tpuv6e --spot --zone=z --project=p".split()
    ]
    assert said.splitlines() == [f"launch/tpu/vm.sh: endx is {state}" for state in states[2:4]]
    assert status == 0


def test_create_finds_the_slice_there_and_does_not_wait_for_what_will_not_come(slice_):
    assert slice_.do("create") == (0, "")
    assert slice_.calls("queued-resources", "create") == []
    for state in ("FAILED", "SUSPENDED"):
        assert slice_.do("create", states=["PROVISIONING", state]) == (1, f"launch/tpu/vm.sh: endx is {state}\n")


def test_each_chip_has_its_software_and_no_spot_or_service_account_unless_asked(slice_):
    software = {"v6e-16": "v2-alpha-tpuv6e", "v5p-32": "v2-alpha-tpuv5", "v4-32": "tpu-ubuntu2204-base"}
    software["v5litepod-16"] = "v2-alpha-tpuv5-lite"
    for chips, version in software.items():
        slice_.do("create", states=["", "ACTIVE"], ACCELERATOR_TYPE=chips)
        call = slice_.calls("queued-resources", "create")[-1]
        assert f"--runtime-version={version}" in call
        assert not {"--spot", "--service-account"} & {part.partition("=")[0] for part in call}
    slice_.do("create", states=["", "ACTIVE"], SERVICE_ACCOUNT="endx@p.iam.gserviceaccount.com")
    assert "--service-account=endx@p.iam.gserviceaccount.com" in slice_.calls("queued-resources", "create")[-1]


def test_setup_brings_the_wheel_and_the_service_and_mounts_nfs_where_it_is_set(slice_):
    assert slice_.do("setup") == (0, "")
    assert {file.name for file in (slice_.folder / "copied").iterdir()} == {
        "endx_jax-1-py3-none-any.whl",
        "endx.service",
    }
    calls = slice_.calls("tpu-vm", "ssh")
    assert all("--worker=all" in call for call in calls)
    assert "[tpu,gcs]" in remote(calls[-1])
    assert not any("nfs" in remote(call) for call in calls)
    assert slice_.do("setup", NFS="10.0.0.2:/runs") == (0, "")
    mounting = slice_.calls("tpu-vm", "ssh")[len(calls) :]
    assert any("'10.0.0.2:/runs /runs nfs defaults,_netdev 0 0'" in remote(call) for call in mounting)
    for call in calls + mounting:
        check_syntax(remote(call))


def remote(call: list[str]) -> str:
    (command,) = [part.removeprefix("--command=") for part in call if part.startswith("--command=")]
    return command


def check_syntax(script: str) -> None:
    assert subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True).stderr == ""


def test_run_starts_the_very_arguments(slice_):
    arguments = ["train", "--config=t5:xl,sde", "--config.a=it's $HOME; `x`", "--workdir=/runs/a b", ""]
    assert slice_.do("run", *arguments) == (0, "")
    (start,) = (slice_.folder / "copied").iterdir()
    endx = shlex.join([sys.executable, "-c", "import sys; print(sys.argv[1:])"])
    here = start.read_text().replace("/opt/endx/venv/bin/endx", endx)
    assert subprocess.run(["bash", "-c", here], capture_output=True, text=True).stdout.strip() == str(arguments)
    (call,) = slice_.calls("tpu-vm", "ssh")
    assert "systemctl restart endx" in remote(call)
    check_syntax(remote(call))


def test_status_is_a_line_a_worker(slice_):
    slice_.do("status", looks=[[DONE.format(0)]])
    shown = "SubState=exited ExecMainCode=1 ActiveState=active Result=success ExecMainStatus=0"
    stand_ins = f"hostname() {{ echo w-0; }}; systemctl() {{ printf '%s\\n' {shown}; }}; "
    command = stand_ins + remote(slice_.calls("tpu-vm", "ssh")[0])
    assert subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout == DONE.format(0) + "\n"


def workers(*lines: str) -> list[str]:
    return [line.format(k) for k, line in enumerate(lines)]


def test_keep_looks_after_a_run_until_all_workers_are_done(slice_):
    looks = [workers(RUNNING, RUNNING), workers(AGAIN, RUNNING), workers(DONE, RUNNING), workers(DONE, DONE)]
    status, said = slice_.do("keep", "train", "--config=a", states=["", "ACTIVE"], looks=looks)
    assert said == "launch/tpu/vm.sh: start 1 ended with status 0; deleting endx\n"
    assert slice_.order() == ["queued-resources create", "queued-resources delete"]
    assert "--force" in slice_.calls("queued-resources", "delete")[0]
    assert status == 0


@pytest.mark.parametrize(
    ("states", "looks", "restarts", "status"),
    [
        (["", "ACTIVE", "ACTIVE", "SUSPENDED", "", "ACTIVE"], [[RUNNING], [DONE]], "100", 0),
        (["", "ACTIVE", "SUSPENDED"] * 2, [[RUNNING]], "1", 75),  # so often and no more
    ],
)
def test_keep_asks_again_for_a_slice_that_was_taken_away(slice_, states, looks, restarts, status):
    looks = [workers(*look) for look in looks]
    found, said = slice_.do("keep", "train", states=states, looks=looks, ENDX_RESTARTS=restarts)
    ends = [f"launch/tpu/vm.sh: start {n} ended with status {end}; deleting endx" for n, end in ((1, 75), (2, status))]
    assert (found, said.splitlines()) == (status, ends)
    assert slice_.order() == ["queued-resources create", "queued-resources delete"] * 2


def test_keep_takes_machines_that_are_shut_down_for_a_lost_slice(slice_):
    states = ["", "ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDED", "", "ACTIVE"]
    looks = [workers(RUNNING, RUNNING), workers(STOPPED, STOPPED), workers(DONE, DONE)]
    assert slice_.do("keep", "train", states=states, looks=looks)[0] == 0
    assert slice_.order() == ["queued-resources create", "queued-resources delete"] * 2


def test_keep_gives_back_what_was_stopped(slice_):
    status, said = slice_.do("keep", "train", looks=[workers(STOPPED, STOPPED)])
    assert said.splitlines() == [
        "launch/tpu/vm.sh: endx was stopped",
        "launch/tpu/vm.sh: start 1 ended with status 1; deleting endx",
    ]
    assert status == 1


@pytest.mark.parametrize("end", [MISTAKE, TOO_OFTEN])
def test_keep_gives_back_at_once_after_a_mistake(slice_, end):
    status, said = slice_.do("keep", "train", looks=[workers(AGAIN, end)])
    assert said.splitlines() == [
        f"launch/tpu/vm.sh: not retried, or retried too often: {end.format(1)}",
        "launch/tpu/vm.sh: start 1 ended with status 1; deleting endx",
    ]
    assert slice_.order() == ["queued-resources delete"]
    assert status == 1


def test_keep_does_not_take_a_bad_line_for_a_lost_slice(slice_):
    states = ["ACTIVE", "", "", "ACTIVE"]
    looks = [None, None, workers(RUNNING), workers(DONE)]
    assert slice_.do("keep", "train", states=states, looks=looks)[0] == 0
    assert slice_.order() == ["queued-resources delete"]


@pytest.mark.parametrize(
    ("arguments", "missing", "said"),
    [
        ([], "", "unknown action (none); use create, setup, run, logs, status, stop, delete or keep"),
        (["strat"], "", "unknown action strat; use create, setup, run, logs, status, stop, delete or keep"),
        (["run"], "", "run: no verb; give the arguments of endx, such as: run train --config=t5:xl,sde"),
        (["keep"], "", "keep: no verb; give the arguments of endx, such as: keep train --config=t5:xl,sde"),
        (["status"], "ZONE", "ZONE: is not set; set the zone, such as ZONE=us-east5-b"),
        (["create"], "ACCELERATOR_TYPE", "is not set; set the type, such as ACCELERATOR_TYPE=v6e-16"),
    ],
)
def test_mistakes_cost_nothing(slice_, arguments, missing, said):
    status, line = slice_.do(*arguments, **({missing: ""} if missing else {}))
    assert line.count("\n") == 1
    assert line.endswith(said + "\n")
    assert status in (1, 2)
    assert slice_.calls() == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_understands_the_service(tmp_path):
    service = tmp_path / "endx.service"
    text = (ROOT / "launch" / "tpu" / "endx.service").read_text()
    for line, complaint in [("Restart=on-abnormal", ""), ("Restart=sometimes", "Failed to parse service restart")]:
        # The command is not on this machine.
        service.write_text(text.replace("/opt/endx/start", "/bin/true").replace("Restart=on-abnormal", line))
        done = subprocess.run(["systemd-analyze", "verify", service], capture_output=True, text=True)
        assert (complaint in done.stderr) if complaint else (done.stderr == "")
