"""Equality of results on any number of processes and devices: `python benchmarks/processes.py`.

Trains a small run with dropout on several topologies, with processes on this machine and virtual CPU devices, and
compares each with the first topology, one process with one device: the loss of every step, every measure of the final
evaluation, and the embeddings in the index. A further run resumes on other topologies: it starts on the last one,
continues on the first and ends on the last. Then each topology encodes a corpus with the first run's model, and the
index is compared with that of one process.

Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

import common
import numpy as np

from endx_jax.experiment.workdir import INDEX, RESULTS
from endx_jax.index.index import Index
from endx_jax.training.metric_log import FILE

LAUNCHER = pathlib.Path(__file__).parents[1] / "launch" / "local.py"
RECIPES = {"dual": "minilm_squad", "endx": "endx_minilm_squad"}
TOPOLOGIES = "1x1,1x2,1x4,1x8,2x1,2x2,4x2"
STEPS = 6
SETTINGS = {
    "data.pool": "",
    "data.question_length": 24,
    "data.answer_length": 24,
    "data.group_size": 1,
    "data.max_train_pairs": 400,
    "data.validation_fraction": 0.05,
    "data.test_fraction": 0.05,
    "data.max_test_questions": 100,
    "model.encoder": "transformer",
    "model.new_encoder.layers": 2,
    "model.new_encoder.heads": 4,
    "model.dropout": 0.1,
    "model.attention_dropout": 0.1,
    "evaluation.untrained": False,
    "train.global_batch_size": 16,
    "train.epochs": 0.0,
    "optimizer.warmup_steps": 0,
    "train.steps": STEPS,
    "train.log_every": 1,
    "train.evaluate_every": 0,
    "train.checkpoint_every": 2,
}


class Topology:
    """Numbers of processes and of devices per process, written `4x2`."""

    def __init__(self, text: str):
        """Parses `PxD`."""
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if not found:
            raise SystemExit(f"{text!r} is not of the form 4x2, processes x devices per process")
        self.text, self.processes, self.devices = text, int(found[1]), int(found[2])

    def run(self, *arguments: object) -> None:
        """Runs `endx_jax.main` with the arguments in every process; ends the script if it fails."""
        command = [sys.executable, LAUNCHER, f"--processes={self.processes}", f"--devices={self.devices}", "--"]
        done = subprocess.run([*map(str, [*command, *arguments])], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.text}: status {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def train(workdir: pathlib.Path, topologies: Sequence[Topology], method: str, options: argparse.Namespace) -> None:
    """Trains a run with an equal number of steps on each topology, one after another."""
    settings = SETTINGS | {"data.path": options.data, "model.pretrained": options.model, "seed": options.seed}
    for number, topology in enumerate(topologies, start=1):
        last = number == len(topologies)
        stop = {"train.stop_at_step": 0 if last else number * STEPS // len(topologies)}
        overrides = [f"--config.{key}={value}" for key, value in (settings | stop).items()]
        topology.run(f"--config={RECIPES[method]}", f"--workdir={workdir}", *overrides)


def losses(workdir: pathlib.Path) -> np.ndarray:
    """Returns the loss of every step."""
    lines = [json.loads(line) for line in (workdir / FILE).read_text().splitlines()]
    return np.array([line["loss"] for line in lines if "loss" in line])


def measures(workdir: pathlib.Path) -> np.ndarray:
    """Returns all measures of all evaluations, in the order of the file."""
    evaluations = json.loads((workdir / RESULTS).read_text())["evaluations"]
    return np.array([value for evaluation in evaluations for value in evaluation["metrics"].values()])


def embeddings(path: pathlib.Path) -> np.ndarray:
    """Returns the embeddings of an index, float32 [N, E]."""
    snapshot = Index(path).snapshot
    return snapshot.vectors(0, len(snapshot))


def encode(run: pathlib.Path, output: pathlib.Path, topology: Topology) -> np.ndarray:
    """Encodes the documents of a run's index with its model, in the processes of a topology; returns the embeddings."""
    corpus = output.with_suffix(".jsonl")
    documents = (document for _, document in Index(run / INDEX).snapshot)
    corpus.write_text("".join(json.dumps({"_id": d.id, "text": d.text}) + "\n" for d in documents))
    options = [f"--workdir={run}", f"--corpus={corpus}"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(topology.devices)}
    command = [sys.executable, "-m", "endx_jax", "encode"]
    numbers = range(1, topology.processes + 1)
    files = [output.with_suffix(f".{number}") for number in numbers]
    shards = [[f"--shard={n}/{topology.processes}", f"--output={file}"] for n, file in zip(numbers, files, strict=True)]
    processes = [
        subprocess.Popen([*command, *options, *shard], env=environment, stdout=subprocess.DEVNULL) for shard in shards
    ]
    if sum(process.wait() for process in processes):
        raise SystemExit(f"{topology.text}: encoding failed")
    return np.concatenate([embeddings(file) for file in files])


def compare(name: str, workdir: pathlib.Path, first: pathlib.Path) -> dict:
    """Returns a row with the largest differences of a run from the first one."""
    found, expected = losses(workdir), losses(first)
    if len(found) != STEPS or found.shape != expected.shape:
        raise SystemExit(f"{name}: {len(found)} losses in the log of {STEPS} steps")
    return {
        "run": name,
        "losses, relative": float(np.abs(found / expected - 1).max()),
        "measures": float(np.abs(measures(workdir) - measures(first)).max()),
        "embeddings": float(np.abs(embeddings(workdir / INDEX) - embeddings(first / INDEX)).max()),
    }


def rows(folder: pathlib.Path, options: argparse.Namespace) -> Iterator[dict]:
    """Yields a row for each comparison."""
    first, *others = [Topology(text) for text in options.topologies.split(",")]
    for method in options.methods.split(","):
        reference = folder / method / first.text
        train(reference, [first], method, options)
        for topology in others:
            workdir = folder / method / topology.text
            train(workdir, [topology], method, options)
            yield compare(f"{method}, {topology.text}", workdir, reference)
        moved = [others[-1], first, others[-1]]
        workdir = folder / method / "moved"
        train(workdir, moved, method, options)
        yield compare(f"{method}, {' then '.join(topology.text for topology in moved)}", workdir, reference)
        alone = encode(reference, folder / method / "alone", first)
        for topology in others:
            if topology.processes > 1:
                shared = encode(reference, folder / method / f"shared {topology.text}", topology)
                yield {"run": f"{method}, encode, {topology.text}", "embeddings": float(np.abs(shared - alone).max())}


def main() -> None:
    """Reads the command line, runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topologies", default=TOPOLOGIES, help=f"the first is the reference [{TOPOLOGIES}]")
    parser.add_argument("--methods", default="dual,endx", help="[dual,endx]")
    parser.add_argument(
        "--model",
        default="all-MiniLM-L6-v2",
        help="model whose token table is used below a new transformer of two layers [all-MiniLM-L6-v2]",
    )
    parser.add_argument("--data", default="docstrings", help="training data, as data.path [docstrings]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=pathlib.Path, help="folder to keep the runs in [removed at the end]")
    parser.add_argument("--json", type=pathlib.Path, help="file for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        results = list(rows(options.folder or pathlib.Path(temporary), options))
    print(common.table(results))
    common.write(options.json, vars(options), results)


if __name__ == "__main__":
    main()
