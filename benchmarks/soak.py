"""Test of resuming after kills: `python benchmarks/soak.py --kills=60`.

Trains a small reference run without interruption, and then runs that are killed: a random process gets SIGKILL or
SIGTERM, at a random moment or while a checkpoint is written, and the same command is started again until the run is
finished. Its state, parameters and optimizer, must then be bit-equal to that of the reference on the same topology, and
`metrics.jsonl` must hold every step once, with the same loss.

Prints a table and, with --json=FILE, writes it with every kill. The exit status is 1 if anything differs.
"""

import argparse
import collections
import json
import logging
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

import common
import jax
import numpy as np
import orbax.checkpoint as ocp

from endx_jax.errors import TRY_AGAIN
from endx_jax.training.checkpoints import FOLDER
from endx_jax.training.metric_log import FILE

# Seconds to wait for processes whose peer was killed: JAX aborts them after up to 100.
PATIENCE = 120.0
SETTINGS = {
    "data.question_length": 16,
    "data.answer_length": 16,
    "data.cache": "",
    "model.encoder": "transformer",
    "model.new_encoder.heads": 2,
    "model.new_encoder.layers": 1,
    "model.dropout": 0.1,
    "evaluation.untrained": False,
    "optimizer.warmup_steps": 0,
    "train.global_batch_size": 16,
    "train.epochs": 0.0,
    "train.log_every": 1,
    "train.checkpoint_every": 5,
    "train.evaluate_every": 40,
}


class Soak:
    """Runs of one topology: a number of processes with one device each."""

    def __init__(self, folder: pathlib.Path, processes: int, steps: int, draw: random.Random):
        """Writes the data into `folder`, which will also hold the runs."""
        self.folder, self.processes, self.steps, self._draw = folder, processes, steps, draw
        folder.mkdir(parents=True, exist_ok=True)
        settings = SETTINGS | {
            "train.steps": steps,
            "train.compilation_cache": folder / "compiled",
            "data.path": write_pairs(folder / "pairs.csv"),
            "model.pretrained": write_vectors(folder / "vectors.txt"),
        }
        overrides = [f"--config.{key}={value}" for key, value in settings.items()]
        self._command = [sys.executable, "-m", "endx_jax", "train", "--config=minilm", *overrides]

    def start(self, workdir: pathlib.Path) -> list[subprocess.Popen]:
        """Starts the processes; each writes its output to a file beside the workdir."""
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
        if self.processes > 1:
            environment |= {"JAX_COORDINATOR_ADDRESS": free_address(), "JAX_NUM_PROCESSES": str(self.processes)}
        started = []
        for index in range(self.processes):
            with open(said(workdir, index), "w", encoding="utf-8") as output:
                command = [*self._command, f"--workdir={workdir}"]
                own = environment | ({"JAX_PROCESS_ID": str(index)} if self.processes > 1 else {})
                started.append(subprocess.Popen(command, env=own, stdout=output, stderr=subprocess.STDOUT))
        return started

    def undisturbed(self) -> float:
        """Trains the reference, unless it exists; returns the seconds of a run whose programs are cached."""
        took = self.folder / "seconds.json"
        if not took.exists():
            for name in ("compiling", "reference"):
                began = time.monotonic()
                self._through(self.folder / name, self.start(self.folder / name))
            took.write_text(json.dumps(time.monotonic() - began))
        return json.loads(took.read_text())

    def strike(self, workdir: pathlib.Path, seconds: float) -> dict | None:
        """Starts a run and sends a signal to one of its processes.

        Args:
          workdir: workdir of the run.
          seconds: duration of an uninterrupted run.

        Returns:
          Description of the kill; None if the run finished first.
        """
        when = self._draw.choice(("any moment", "while saving"))
        number = self._draw.choices((signal.SIGKILL, signal.SIGTERM), (4, 1))[0]
        victim = self._draw.randrange(self.processes)
        delay = self._draw.uniform(0, seconds if when == "any moment" else 0.1)
        before = unfinished(workdir)
        processes = self.start(workdir)
        if when == "while saving":
            wait_for_save(workdir, processes, after=self._draw.randrange(5))
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline and processes[victim].poll() is None:
            time.sleep(0.002)
        if processes[victim].poll() is not None:
            return self._through(workdir, processes)
        processes[victim].send_signal(number)
        statuses = leave(processes)
        return {
            "signal": number.name,
            "when": when,
            "victim": victim,
            "statuses": statuses,
            "cut_off": next((what for name, what in unfinished(workdir).items() if name not in before), "nothing"),
            "last_words": [last_words(said(workdir, index)) for index in range(self.processes)],
            "tracebacks": sum("Traceback" in said(workdir, index).read_text() for index in range(self.processes)),
        }

    def _through(self, workdir: pathlib.Path, processes: Sequence[subprocess.Popen]) -> None:
        """Waits until a run is finished; restarts it if its processes failed to connect."""
        statuses = [process.wait() for process in processes]
        if TRY_AGAIN in statuses or -signal.SIGABRT in statuses:
            self._through(workdir, self.start(workdir))
        elif any(statuses):
            raise SystemExit(f"processes that were not killed ended with {statuses}; see {said(workdir, 0)}")

    def rounds(self, kills: int, seed: int) -> Iterator[dict]:
        """Trains runs with kills until there were `kills` SIGKILLs; yields the outcome of each run."""
        seconds = self.undisturbed()
        done = 0
        while done < kills:
            workdir = self.folder / f"under fire {seed}-{done}"
            strikes, finished = [], False
            while not finished and done < kills:
                found = self.strike(workdir, seconds)
                if found is None:
                    finished = True
                    continue
                strikes.append(found)
                done += found["signal"] == "SIGKILL"
                print(f"{self.processes} process(es), kill {done}: {json.dumps(found)}", file=sys.stderr, flush=True)
            if not finished:
                self._through(workdir, self.start(workdir))
            yield {"processes": self.processes, "strikes": strikes, **self.compare(workdir)}

    def compare(self, workdir: pathlib.Path) -> dict:
        """Compares a finished run with the reference."""
        expected = self.folder / "reference"
        states = [state(folder, self.steps) for folder in (workdir, expected)]
        steps = [line["step"] for line in losses(workdir)]
        return {
            "state_bit_equal": all(jax.tree.leaves(jax.tree.map(np.array_equal, *states))),
            "every_step_once": steps == [*range(1, self.steps + 1)],
            "losses_equal": losses(workdir) == losses(expected),
            "validations_equal": losses(workdir, "validation/mrr") == losses(expected, "validation/mrr"),
        }


def write_pairs(file: pathlib.Path) -> pathlib.Path:
    """Writes six hundred random questions and answers."""
    draw = random.Random(0)
    words = [f"w{i}" for i in range(200)]
    lines = [f"{' '.join(draw.choices(words, k=6))},{' '.join(draw.choices(words, k=8))}" for _ in range(600)]
    file.write_text("\n".join(["question,answer", *lines]) + "\n")
    return file


def write_vectors(file: pathlib.Path) -> pathlib.Path:
    """Writes a random vector of 16 dimensions for each word of the pairs."""
    draw = random.Random(1)
    lines = [f"w{i} {' '.join(f'{draw.gauss(0, 1):.4f}' for _ in range(16))}" for i in range(200)]
    file.write_text("\n".join(lines) + "\n")
    return file


def wait_for_save(workdir: pathlib.Path, processes: Sequence[subprocess.Popen], after: int) -> None:
    """Waits until Orbax begins to write a checkpoint after `after` others, or until a process has ended."""
    seen: set[str] = set()
    while len(seen) <= after and all(process.poll() is None for process in processes):
        seen |= {folder.name for folder in (workdir / FOLDER).glob("*.orbax-checkpoint-tmp*")}
        time.sleep(0.001)


def leave(processes: Sequence[subprocess.Popen]) -> list[int]:
    """Waits `PATIENCE` seconds for processes to end, then kills the rest; returns the statuses, 9 for killed ones."""
    deadline = time.monotonic() + PATIENCE
    statuses = []
    for process in processes:
        try:
            statuses.append(process.wait(max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            statuses.append(9)
    return statuses


def unfinished(workdir: pathlib.Path) -> dict[tuple[str, int], str]:
    """Returns incomplete checkpoints by name and time, with the part that is incomplete."""
    found = {}
    for folder in (workdir / FOLDER).glob("*"):
        if ".orbax-checkpoint-tmp" in folder.name:
            found[folder.name, folder.stat().st_mtime_ns] = "a checkpoint"
    return found


def state(workdir: pathlib.Path, step: int) -> dict:
    """Returns all arrays of a checkpoint as NumPy arrays."""
    found = {}
    with ocp.PyTreeCheckpointer() as reader:
        for item in ("params", "progress"):
            folder = (workdir / FOLDER / str(step) / item).absolute()
            tree = reader.metadata(folder).item_metadata.tree
            as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
            found[item] = reader.restore(folder, restore_args=as_numpy)
    return found


def losses(workdir: pathlib.Path, name: str = "loss") -> list[dict]:
    """Returns the logged values of a measure by step."""
    lines = [json.loads(line) for line in (workdir / FILE).read_text().splitlines()]
    return [{"step": line["step"], name: line[name]} for line in lines if name in line]


def said(workdir: pathlib.Path, index: int) -> pathlib.Path:
    """Returns the file with the output of a process since its last start."""
    return workdir.with_name(f"{workdir.name}.{index}.txt")


def last_words(file: pathlib.Path) -> str:
    """Returns the last line of a process's output."""
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def free_address() -> str:
    """Returns a free address for the coordinator."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return f"localhost:{probe.getsockname()[1]}"


def summarise(found: Sequence[dict]) -> list[dict]:
    """Returns a row for each topology."""
    rows = []
    for processes in sorted({one["processes"] for one in found}):
        runs = [one for one in found if one["processes"] == processes]
        strikes = [strike for one in runs for strike in one["strikes"]]
        signals = collections.Counter(strike["signal"] for strike in strikes)
        cut = collections.Counter(strike["cut_off"] for strike in strikes if strike["signal"] == "SIGKILL")
        told = [strike["statuses"] for strike in strikes if strike["signal"] == "SIGTERM"]
        rows.append({
            "processes": processes,
            "runs": len(runs),
            "SIGKILL": signals["SIGKILL"],
            "of these in a checkpoint": cut["a checkpoint"],
            "SIGTERM": signals["SIGTERM"],
            f"ended with {TRY_AGAIN}": sum(all(status == TRY_AGAIN for status in ended) for ended in told),
            "states bit-equal": sum(one["state_bit_equal"] for one in runs),
            "every step once": sum(one["every_step_once"] for one in runs),
            "losses equal": sum(one["losses_equal"] and one["validations_equal"] for one in runs),
        })  # fmt: skip
    return rows


def main() -> int:
    """Reads the command line, runs and prints; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=60, help="number of SIGKILLs over all topologies [60]")
    parser.add_argument("--processes", default="1,2", help="number of processes of each topology [1,2]")
    parser.add_argument("--steps", type=int, default=100, help="steps of a run [100]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the kills")
    parser.add_argument("--folder", type=pathlib.Path, help="folder of the runs, with a reusable reference [temporary]")
    parser.add_argument("--json", type=pathlib.Path, help="file for the results")
    options = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax misses a file that its manager does not write
    draw = random.Random(options.seed)
    topologies = [int(text) for text in options.processes.split(",")]
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        for processes in topologies:
            folder = (options.folder or pathlib.Path(temporary)).absolute() / str(processes)
            soak = Soak(folder, processes, options.steps, draw)
            for one in soak.rounds(-(-options.kills // len(topologies)), options.seed):
                found.append(one)
                common.write(options.json, vars(options), summarise(found), runs=found)
    print(common.table(summarise(found)))
    checks = ("state_bit_equal", "every_step_once", "losses_equal", "validations_equal")
    return 0 if all(one[check] for one in found for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
