"""Memory and time of the streamed losses beside the dense ones: `python benchmarks/losses.py [memory|devices|time]`.

memory: temporaries of the value and gradient, from the compiled programs; nothing is run.
devices: the same per device, the batch growing with the devices (8 virtual ones on a CPU).
time: both forms run in alternation; medians.

Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import functools
import json
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.losses import geometry_alignment, in_batch_softmax
from endx_jax.losses.geometry import TERMS
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.parallel.execution import Execution

WEIGHTS = dict.fromkeys(TERMS, 1.0)


def softmax(embeddings, direction, **cut):
    (question, answer), _ = embeddings
    return in_batch_softmax(question, answer, temperature=0.05, direction=direction, **cut)


def alignment(embeddings, **cut):
    return geometry_alignment(*embeddings, weights=WEIGHTS, **cut)[0]


LOSSES = {
    "softmax, one direction": functools.partial(softmax, direction="question_to_answer"),
    "softmax, both": functools.partial(softmax, direction="sum"),
    "alignment, four terms": alignment,
}


def shapes(batch, width, sharding=None):
    like = jax.ShapeDtypeStruct((batch, width), jnp.float32, sharding=sharding)
    return ((like, like), (like, like))


def draw(batch, width):
    random = np.random.default_rng(0)
    base = random.normal(size=(batch, width))
    draws = [jnp.asarray((base + random.normal(size=base.shape)) / width**0.5, jnp.float32) for _ in range(4)]
    return (draws[0], draws[1]), (draws[2], draws[3])


def compile_loss(loss, arguments, tile, mesh=None):
    execution = Execution(mesh, loss_tile=tile)

    def compute(dual, cross):
        def cut(rows, axis_name):
            return loss(rows, tile=tile, axis_name=axis_name)

        return execution.reduce_rows(cut, (dual, cross))

    # Of the student alone: the teacher is a constant, as in training.
    return jax.jit(jax.value_and_grad(compute)).lower(*arguments).compile()


def megabytes(compiled):
    return round(compiled.memory_analysis().temp_size_in_bytes / 1e6, 1)


def memory(options):
    for name, loss in LOSSES.items():
        for tile in (None, options.tile):
            compiled = compile_loss(loss, shapes(options.batch, options.width), tile)
            yield {"loss": name, "batch": options.batch, "tile": tile, "temporaries_mb": megabytes(compiled)}


def devices(options):
    for name, loss in LOSSES.items():
        for count in (1, 2, 4, 8):
            mesh = make_mesh(MeshSettings(), jax.devices()[:count])
            sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
            batch = options.batch * count
            total = megabytes(compile_loss(loss, shapes(batch, options.width, sharding), options.tile, mesh))
            array = batch * options.width * 4 / 1e6
            yield {"loss": name, "devices": count, "batch": batch, "per_device_mb": total, "one_gathered_mb": array}


def measure(options):
    arguments = draw(options.batch, options.width)
    for name, loss in LOSSES.items():
        forms = {tile: compile_loss(loss, arguments, tile) for tile in (None, options.tile)}
        seconds = {tile: [] for tile in forms}
        for repetition in range(options.repetitions + 1):
            for tile, compiled in forms.items():
                start = time.perf_counter()
                jax.block_until_ready(compiled(*arguments))
                if repetition:  # the first one warms up
                    seconds[tile].append(time.perf_counter() - start)
        medians = {tile: statistics.median(times) for tile, times in seconds.items()}
        for tile, median in medians.items():
            ratio = round(median / medians[None], 2)
            yield {"loss": name, "batch": options.batch, "tile": tile, "seconds": round(median, 3), "to_dense": ratio}


MODES = {"memory": memory, "devices": devices, "time": measure}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--batch", type=int, default=8192, help="pairs; with `devices`, pairs a device")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--tile", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if options.mode == "devices" and jax.config.jax_platforms in (None, "cpu"):
        jax.config.update("jax_num_cpu_devices", 8)
    rows = []
    for row in MODES[options.mode](options):
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        rows.append(row)
    if options.json:
        machine = {"device": jax.devices()[0].device_kind, "processor": platform.processor(), "jax": jax.__version__}
        with open(options.json, "w") as file:
            json.dump({"machine": machine, "options": vars(options), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
