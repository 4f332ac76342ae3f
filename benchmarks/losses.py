"""Memory and time of the streamed losses: `python benchmarks/losses.py [memory|devices|time|peers]`.

memory: temporaries of value and gradient, dense and streamed, from the compiled programs, which are not run.
devices: temporaries per device, with a fixed batch on each device (8 virtual devices on a CPU).
time: median times of dense and streamed losses, run in alternation.
peers: the in-batch softmax, PyTorch's and sentence-transformers': median times in alternation, and the peak memory of
    one run in a fresh process (see peer_losses.py).

Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import functools

import common
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from endx_jax.losses import Ceiling, Guide, Options, Prefixes, geometry_alignment, in_batch_softmax
from endx_jax.losses.geometry import TERMS
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.parallel.execution import Execution

WEIGHTS = dict.fromkeys(TERMS, 1.0)


def softmax(embeddings, direction, **cut):
    (question, answer), _ = embeddings
    return in_batch_softmax(question, answer, temperature=0.05, direction=direction, **cut)[0]


def alignment(embeddings, **cut):
    return geometry_alignment(*embeddings, weights=WEIGHTS, **cut)[0]


def guided(embeddings, **cut):
    """Four prefixes (Matryoshka), and negatives left out by their own scores and by a guide, which is the teacher."""
    (question, answer), guide = embeddings
    prefixes = Prefixes(tuple(question.shape[1] // part for part in (8, 4, 2, 1)))
    options = Options(prefixes, ceiling=Ceiling(1.0, 0.1), guide=Guide(*guide))
    return in_batch_softmax(question, answer, temperature=0.05, options=options, **cut)[0]


ONE_DIRECTION = "softmax, one direction"
LOSSES = {
    ONE_DIRECTION: functools.partial(softmax, direction="question_to_answer"),
    "softmax, both": functools.partial(softmax, direction="sum"),
    "softmax, four prefixes, guided": guided,
    "alignment, four terms": alignment,
}


def shapes(batch, width, sharding=None):
    like = jax.ShapeDtypeStruct((batch, width), jnp.float32, sharding=sharding)
    return ((like, like), (like, like))


def draw(batch, width, seed=0):
    """Draws (question, answer) embeddings of student and teacher, float32 [batch, width] of about unit norm."""
    random = np.random.default_rng(seed)
    base = random.normal(size=(batch, width))
    draws = [((base + random.normal(size=base.shape)) / (2 * width) ** 0.5).astype(np.float32) for _ in range(4)]
    return (draws[0], draws[1]), (draws[2], draws[3])


def compile_loss(loss, arguments, tile, mesh=None):
    execution = Execution(mesh, loss_tile=tile)

    def compute(dual, cross):
        def cut(_, rows, axis_name):
            return loss(rows, tile=tile, axis_name=axis_name)

        return execution.reduce_rows(cut, None, (dual, cross))

    # Only the student has a gradient, as in training.
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
    arguments = jax.tree.map(jnp.asarray, draw(options.batch, options.width, options.seed))
    for name, loss in LOSSES.items():
        cases = {
            tile: functools.partial(_run, compile_loss(loss, arguments, tile), arguments)
            for tile in (None, options.tile)
        }
        medians = {tile: common.median(times) for tile, times in common.alternate(cases, options.repeats).items()}
        for tile, seconds in medians.items():
            ratio = seconds / medians[None]
            yield {"loss": name, "batch": options.batch, "tile": tile, "seconds": seconds, "to_dense": ratio}


def peers(options):
    import peer_losses

    yield from peer_losses.compare(options)


def _run(compiled, arguments):
    jax.block_until_ready(compiled(*arguments))


MODES = {"memory": memory, "devices": devices, "time": measure, "peers": peers}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--batch", type=int, default=8192, help="number of pairs; with `devices`, on each device")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--tile", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if options.mode == "devices" and jax.config.jax_platforms in (None, "cpu"):
        jax.config.update("jax_num_cpu_devices", 8)
    rows = list(MODES[options.mode](options))
    print(common.table(rows))
    packages = ("torch", "sentence-transformers") if options.mode == "peers" else ()
    common.write(options.json, vars(options), rows, versions=common.versions(*packages))


if __name__ == "__main__":
    main()
