"""The shell scripts of the project, and what all launch files have to agree on."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ["launch/slurm.sh", "launch/tpu/vm.sh", ".ci/run"]

# 75, and the signals ABRT, BUS, KILL, SEGV and TERM.
AGAIN = "75 134 135 137 139 143"


@pytest.mark.parametrize("script", SCRIPTS)
def test_bash_reads_it(script):
    assert subprocess.run(["bash", "-n", ROOT / script], capture_output=True, text=True).stderr == ""


def test_none_is_left_out():
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "launch").rglob("*.sh")}
    assert found == {script for script in SCRIPTS if script.startswith("launch")}


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck_has_nothing_to_say(script):
    done = subprocess.run(["shellcheck", "--exclude=SC1091", ROOT / script], capture_output=True, text=True)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("launch/local.py", r"^AGAIN = \(TRY_AGAIN, (.*)\)$"),
        ("launch/slurm.sh", r'^export AGAIN="(.*)"$'),
        ("launch/tpu/endx.service", r"^RestartForceExitStatus=(.*)$"),
        ("launch/gke/tpu.yaml", r"^ +values: \[(.*)\]$"),
        ("launch/gke/gpu.yaml", r"^ +values: \[(.*)\]$"),
    ],
)
def test_all_try_again_after_the_same(file, pattern):
    (found,) = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
    assert found.replace(",", "") in (AGAIN, AGAIN.removeprefix("75 "))


def test_75_is_what_endx_says():
    local = (ROOT / "launch" / "local.py").read_text()
    from endx_jax.errors import TRY_AGAIN

    assert f"TRY_AGAIN = {TRY_AGAIN} " in local
