"""Weak scaling, by the compiled program: `python benchmarks/scaling.py [--devices 1 2 4 ...] [--json=FILE]`.

Compiles the step of a recipe for 1 to 64 virtual devices, as many pairs on each, in a process each, and reads from the
program what one device computes and receives: nothing is run. What should hold: FLOPs per device stay what they are,
but for the scores of a batch that grows; `data` reduces each gradient once, whatever the devices; `fsdp` gathers each
matrix twice an encoding and leaves each device its part of the state.

Without data all texts are as long as they may be, so that every batch is alike. In float32, as a CPU's compiler widens
bfloat16. Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict

import common
import jax

from endx_jax.experiment.config import resolve
from endx_jax.methods.config import load_recipe
from endx_jax.parallel.programs import collectives
from endx_jax.parallel.sharding import parameter_paths, rule_of
from endx_jax.planning.subject import Subject, Texts, outline_run

NO_DATA = Texts(None, "not read")
RECIPES = {"dual": "minilm_squad", "endx": "endx_minilm_squad"}
MESHES = {"data": {"data": -1, "fsdp": 1}, "fsdp": {"data": 1, "fsdp": -1}}


def subject(method: str, mesh: str, options: argparse.Namespace) -> Subject:
    """The step on all devices of this process."""
    config = load_recipe(RECIPES[method]).get_config()
    config.model.update(dtype="float32", dropout=0.0, attention_dropout=0.0)
    config.data.question_length, config.data.answer_length = options.question_length, options.answer_length
    config.train.global_batch_size, config.train.tower_chunk = options.pairs * jax.device_count(), 0
    config.objective.loss_tile = 0
    config.mesh.update(MESHES[mesh])
    return outline_run(resolve(config), NO_DATA).on(None)


def measure(method: str, mesh: str, options: argparse.Namespace) -> dict:
    """The row of one method on one mesh."""
    found = subject(method, mesh, options)
    # Machine code is not what is looked at: this leaves the program as it is, and saves most of the time.
    program = found.trace().lower().compile({"xla_backend_optimization_level": 0})
    received: dict[str, int] = defaultdict(int)
    for one in collectives(program.as_text()):
        received[one.kind] += one.bytes * (one.times or 1)
    memory = program.memory_analysis()
    gradients, gathered, rest = in_theory(found)
    return {
        "method": method,
        "mesh": mesh,
        "devices": jax.device_count(),
        "gflop": program.cost_analysis()["flops"] / 1e9,
        "state, MB": memory.argument_size_in_bytes / 1e6,
        "temporaries, MB": memory.temp_size_in_bytes / 1e6,
        "all-gather, MB": received["all-gather"] / 1e6,
        "of matrices in theory, MB": gathered / 1e6,
        "all-reduce, MB": (received["all-reduce"] + received["reduce-scatter"]) / 1e6,
        "of gradients in theory, MB": gradients / 1e6,
        "other, MB": (received["all-to-all"] + received["collective-permute"]) / 1e6,
        "of answers in theory, MB": rest / 1e6,
    }


def in_theory(found: Subject) -> tuple[int, int, int]:
    """Bytes that a device receives a step: of gradients, of matrices, and of the others' embeddings.

    Gradients are reduced once, whole: a TPU's compiler leaves each device its part of those that `fsdp` splits. A
    matrix of a layer is gathered for each side, forward and backward. Each device scores its own questions against the
    answers of all.
    """
    mesh, params = found.mesh, parameter_paths(found.model.abstract_params())
    if mesh.size == 1:
        return 0, 0, 0
    matrices = {path: 4 * leaf.size for path, leaf in params.items() if rule_of(path).by_layer}
    # Both sides pass through an encoder, and pairs, once, through what ENDX's teacher has beside its own.
    gathered = sum(size * (4 if "/encoder/" in path else 2) for path, size in matrices.items())
    rows, width = found.model.settings.train.global_batch_size, found.model.sources["question"].config.width
    gradients = sum(4 * leaf.size for leaf in params.values())
    return gradients, gathered if mesh.shape["fsdp"] > 1 else 0, 4 * rows * width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--pairs", type=int, default=8, help="on each device")
    parser.add_argument("--question_length", type=int, default=32)
    parser.add_argument("--answer_length", type=int, default=64)
    parser.add_argument("--methods", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--meshes", nargs="+", choices=MESHES, default=list(MESHES))
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if len(options.devices) == 1:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", options.devices[0])
        rows = [measure(method, mesh, options) for method in options.methods for mesh in options.meshes]
    else:
        rows = [row for devices in options.devices for row in in_a_process(devices, options)]
        rows.sort(key=lambda row: (row["method"], row["mesh"], row["devices"]))
    print(common.table(rows))
    common.write(options.json, vars(options), rows)


def in_a_process(devices: int, options: argparse.Namespace) -> list[dict]:
    """The rows of so many devices: their number is fixed when a process begins."""
    file = f"{options.json or 'scaling'}.{devices}"
    same = ["pairs", "question_length", "answer_length"]
    arguments = [f"--{name}={getattr(options, name)}" for name in same]
    arguments += ["--methods", *options.methods, "--meshes", *options.meshes]
    command = [sys.executable, __file__, "--devices", str(devices), *arguments, f"--json={file}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    try:
        with open(file) as written:
            return json.load(written)["results"]
    finally:
        os.remove(file)


if __name__ == "__main__":
    main()
