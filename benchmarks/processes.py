"""Are results the same however many processes and devices compute them? `python benchmarks/processes.py`.

Trains one small run again and again, dropout on, as real processes of this machine with virtual CPU devices, and holds
each against the first, of one process with one device: the loss of every step, every measure of the final evaluation,
and the embeddings in the index that it leaves. One more run moves between steps: it begins as the last topology, goes
on as the first and ends as the last. With the first run's model the processes then share out a corpus to encode, whose
index is held against that of one process.

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
from endx_jax.retrieval.index import Index
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
    """So many processes with so many devices each, written `4x2`."""

    def __init__(self, text: str):
        """Reads `PxD`."""
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if not found:
            raise SystemExit(f"{text!r} is not of the form 4x2, processes x devices of each")
        self.text, self.processes, self.devices = text, int(found[1]), int(found[2])

    def run(self, *arguments: object) -> None:
        """Runs `endx_jax.main` with the arguments in every process; ends the script where that fails."""
        command = [sys.executable, LAUNCHER, f"--processes={self.processes}", f"--devices={self.devices}", "--"]
        done = subprocess.run([*map(str, [*command, *arguments])], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.text}: status {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def train(workdir: pathlib.Path, topologies: Sequence[Topology], method: str, options: argparse.Namespace) -> None:
    """Trains into the workdir, an equal number of steps on each topology in turn."""
    settings = SETTINGS | {"data.path": options.data, "model.pretrained": options.model, "seed": options.seed}
    for number, topology in enumerate(topologies, start=1):
        last = number == len(topologies)
        stop = {"train.stop_at_step": 0 if last else number * STEPS // len(topologies)}
        overrides = [f"--config.{key}={value}" for key, value in (settings | stop).items()]
        topology.run(f"--config={RECIPES[method]}", f"--workdir={workdir}", *overrides)


def losses(workdir: pathlib.Path) -> np.ndarray:
    """Of every step."""
    lines = [json.loads(line) for line in (workdir / FILE).read_text().splitlines()]
    return np.array([line["loss"] for line in lines if "loss" in line])


def measures(workdir: pathlib.Path) -> np.ndarray:
    """Of every evaluation, in the order in which they are written."""
    evaluations = json.loads((workdir / RESULTS).read_text())["evaluations"]
    return np.array([value for evaluation in evaluations for value in evaluation["metrics"].values()])


def embeddings(folder: pathlib.Path) -> np.ndarray:
    """Of an index, float32 [N, E]."""
    snapshot = Index(folder).snapshot
    return snapshot.vectors(0, len(snapshot))


def encode(run: pathlib.Path, output: pathlib.Path, topology: Topology) -> np.ndarray:
    """The embeddings of the documents that a run was evaluated on, encoded by its model, shared out to processes."""
    corpus = output.with_suffix(".jsonl")
    documents = (document for _, document in Index(run / INDEX).snapshot.documents())
    corpus.write_text("".join(json.dumps({"_id": d.id, "text": d.text}) + "\n" for d in documents))
    options = [f"--workdir={run}", f"--corpus={corpus}", f"--output={output}", "--shard-size=16"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(topology.devices)}
    command = [sys.executable, "-m", "endx_jax", "encode", *options]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(topology.processes)
    ]
    if sum(process.wait() for process in processes):
        raise SystemExit(f"{topology.text}: encoding failed")
    return embeddings(output)


def compare(name: str, workdir: pathlib.Path, first: pathlib.Path) -> dict:
    """A row: how far a run is from the first one at most."""
    found, expected = losses(workdir), losses(first)
    if len(found) != STEPS or found.shape != expected.shape:
        raise SystemExit(f"{name}: {len(found)} losses in the log, where {STEPS} steps were taken")
    return {
        "run": name,
        "losses, relative": float(np.abs(found / expected - 1).max()),
        "measures": float(np.abs(measures(workdir) - measures(first)).max()),
        "embeddings": float(np.abs(embeddings(workdir / INDEX) - embeddings(first / INDEX)).max()),
    }


def rows(folder: pathlib.Path, options: argparse.Namespace) -> Iterator[dict]:
    """All comparisons."""
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
    parser.add_argument("--topologies", default=TOPOLOGIES, help=f"the first is what others are held to [{TOPOLOGIES}]")
    parser.add_argument("--methods", default="dual,endx", help="[dual,endx]")
    parser.add_argument(
        "--model",
        default="all-MiniLM-L6-v2",
        help="whose token table is trained under a new transformer of two layers [all-MiniLM-L6-v2]",
    )
    parser.add_argument("--data", default="docstrings", help="as data.path [docstrings]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=pathlib.Path, help="to keep the runs in; by default they are removed")
    parser.add_argument("--json", type=pathlib.Path, help="also write the table here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        results = list(rows(options.folder or pathlib.Path(temporary), options))
    print(common.table(results))
    common.write(options.json, vars(options), results)


if __name__ == "__main__":
    main()
