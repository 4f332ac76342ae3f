"""What a run survives: a notice to leave, a second start, a disk that is full. Kills are for benchmarks/soak.py."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

import chex
import pytest
from helpers import trained_params

from endx_jax.experiment.run import run
from endx_jax.training.checkpoints import newest_step
from endx_jax.training.preemption import NOTICE


def log(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line.get("loss", line.get("validation/mrr"))) for line in lines]


def flags(config):
    """The settings of a config as arguments of `endx train --config=minilm`."""
    return [
        f"--config.{section}.{name}={value}"
        for section, values in config.to_dict().items()
        for name, value in (values.items() if isinstance(values, dict) else ())
        if isinstance(value, str | int | float) and (section, name) != ("objective", "name")
    ]


@pytest.mark.slow
def test_a_process_saves_after_ctrl_c_and_the_same_command_goes_on(config, tmp_path):
    config.train.update(steps=300, epochs=0.0, checkpoint_every=1000, evaluate_every=0, log_every=1)
    run(config, tmp_path / "whole")
    command = ["train", "--config=minilm", f"--workdir={tmp_path / 'run'}", *flags(config)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "PYTHONUNBUFFERED": "1"}
    metrics, errors = tmp_path / "run" / "metrics.jsonl", tmp_path / "errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "endx_jax", *command], stdout=subprocess.DEVNULL, stderr=stderr, env=environment
        ) as process,
    ):
        while process.poll() is None and not (metrics.exists() and len(metrics.read_bytes().splitlines()) > 5):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    notice, last = errors.read_text().splitlines()
    assert notice == NOTICE.decode().strip()
    step = newest_step(tmp_path / "run")
    assert 5 <= step < 300
    saved = f"endx train: stopped by Ctrl-C: saved at step {step} of 300; run the same command to resume: endx "
    assert last == saved + shlex.join(command)
    run(config, tmp_path / "run")
    assert log(tmp_path / "run") == log(tmp_path / "whole")
    chex.assert_trees_all_equal(trained_params(tmp_path / "run"), trained_params(tmp_path / "whole"))


# Mounts a small file system, trains into it until it is full, makes room, and trains on.
ON_A_SMALL_DISK = """
import os, subprocess, sys
from endx_jax.cli.entry import run_verb
disk, size, *settings = sys.argv[1:]
arguments = ["train", "--config=minilm", f"--workdir={disk}/run", *settings]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
print(run_verb(arguments), file=sys.stderr)
subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
print(run_verb(arguments), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", ["100k", "400k", "700k"])
def test_on_a_full_disk_a_run_ends_with_one_line_and_goes_on_when_there_is_room(config, tmp_path, size):
    space = ["unshare", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*space, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount file systems of its own")
    settings = flags(config)
    command = [*space, sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path), size, *settings]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    message, *statuses = done.stderr.splitlines()
    assert message.startswith(f"endx train: can't write {tmp_path}/run")
    assert message.endswith("; free some space and run the same command to resume")
    assert statuses == ["2", "0"]
