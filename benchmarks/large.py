"""Large encoders: where their parameters lie, and whether a step of them runs here.

`python benchmarks/large.py shapes --config=t5:xxl,sde --devices=64 --tensor=8` compiles a recipe's step from shapes
alone, without weights, and holds the program against the table of sharding rules: every parameter and every array of
the optimizer must lie where the table says, whole where it says so and nowhere else, and the bytes of the program's
arguments must be those of the table.

`python benchmarks/large.py step --config=t5:large,sde --devices=8 --batch=16` draws the parameters, each device its
part, takes steps on random tokens, and measures the memory of the whole process: all virtual devices are in it.

Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import dataclasses
import resource
import time

import common
import jax
import numpy as np

from endx_jax.experiment.config import resolve
from endx_jax.methods.config import load_recipe
from endx_jax.parallel.programs import collectives
from endx_jax.parallel.sharding import parameter_paths, partition_spec, to_global
from endx_jax.planning.subject import Subject, Texts, outline_run
from endx_jax.training.state import TrainState

NO_DATA = Texts(None, "not read")


def subject(options: argparse.Namespace) -> Subject:
    """The step of the recipe on all devices."""
    module, _, arguments = options.config.partition(":")
    make = load_recipe(module).get_config
    config = make(arguments) if arguments else make()
    config.model.update(dtype=options.dtype)
    config.mesh.update(data=1, fsdp=-1, tensor=options.tensor)
    if options.batch:
        config.train.global_batch_size = options.batch
    if options.remat:
        config.model.remat = options.remat
    config.data.question_length, config.data.answer_length = options.question_length, options.answer_length
    return outline_run(resolve(config), NO_DATA).on(None)


def shapes(options: argparse.Namespace) -> dict:
    """Compiles the step, and holds where its arguments lie against the table."""
    found = subject(options)
    start = time.perf_counter()
    lowered = found.trace().lower()
    traced = time.perf_counter()
    program = lowered.compile({"xla_backend_optimization_level": 0})
    compiled = time.perf_counter()
    lie, wanted, replicated = parameter_paths(program.input_shardings[0][0]), 0, []
    for path, leaf in parameter_paths(found.step.state).items():
        if path not in lie:  # what the program has no use for, such as Adafactor's stand-ins, it is not given
            continue
        spec, lies = partition_spec(path, leaf.shape, found.mesh), lie[path]
        table = jax.sharding.NamedSharding(found.mesh, spec)
        if not lies.is_equivalent_to(table, len(leaf.shape)):
            raise SystemExit(f"{path} {leaf.shape} lies {lies}, and the table says {spec}")
        if path.startswith("params/") and not any(spec):
            replicated.append(leaf.size * leaf.dtype.itemsize)
        wanted += int(np.prod(table.shard_shape(leaf.shape))) * leaf.dtype.itemsize
    rows, given = parameter_paths(found.batch), parameter_paths(program.input_shardings[0][1])
    wanted += sum(int(np.prod(given[path].shard_shape(rows[path].shape))) * rows[path].dtype.itemsize for path in given)
    memory = program.memory_analysis()
    if memory.argument_size_in_bytes != wanted:
        raise SystemExit(f"a device is given {memory.argument_size_in_bytes} bytes, and the table says {wanted}")
    received = sum(one.bytes * (one.times or 1) for one in collectives(program.as_text()))
    return row(found, options) | {
        "lowered, s": traced - start,
        "compiled, s": compiled - traced,
        "state and batch a device, MB": wanted / 1e6,
        "of it whole everywhere, MB": sum(replicated) / 1e6,
        "largest whole, KB": max(replicated) / 1e3,
        "temporaries a device, MB": memory.temp_size_in_bytes / 1e6,
        "received a device and step, MB": received / 1e6,
    }


def step(options: argparse.Namespace) -> dict:
    """Draws parameters and takes steps."""
    found = subject(options)
    model, abstract = found.model, found.step

    def create(key) -> TrainState:
        return abstract.create(model.objective.init(key, model.dual_encoder.init(key)))

    start = time.perf_counter()
    state = jax.jit(create, out_shardings=abstract.shardings)(jax.random.key(options.seed))
    jax.block_until_ready(state)
    drawn, peak_drawn = time.perf_counter(), peak_memory()
    batch = to_global(random_batch(found, options.seed), found.mesh, len(found.batch.question_id))
    program = found.trace().lower().compile()
    compiled, losses, seconds = time.perf_counter(), [], []
    for _ in range(options.steps):
        begin = time.perf_counter()
        state, metrics = program(state, batch)
        losses.append(float(metrics["loss"]))
        seconds.append(time.perf_counter() - begin)
    return row(found, options) | {
        "state, GB": sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) / 1e9,
        "drawn, s": drawn - start,
        "compiled, s": compiled - drawn,
        "a step, s": common.median(seconds),
        "losses": " ".join(f"{loss:.4f}" for loss in losses),
        "peak when drawn, GB": peak_drawn,
        "peak of the process, GB": peak_memory(),
    }


def row(found: Subject, options: argparse.Namespace) -> dict:
    """What both tables begin with."""
    settings = found.model.settings
    return {
        "config": options.config,
        "parameters, M": sum(leaf.size for leaf in jax.tree.leaves(found.step.state.params)) / 1e6,
        "mesh": " x ".join(f"{name} {size}" for name, size in found.axes.items()),
        "batch": settings.train.global_batch_size,
        "remat": settings.model.remat,
        "dtype": settings.model.dtype,
    }


def random_batch(found: Subject, seed: int):
    """Pairs of random tokens, as long as they may be."""
    draw = np.random.default_rng(seed)
    size, vocabulary = len(found.batch.question_id), found.model.sources["question"].config.vocab_size

    def tokens(like):
        ids = draw.integers(1, vocabulary, like.ids.shape, np.int32)
        return dataclasses.replace(like, ids=ids, mask=np.ones(like.mask.shape, bool))

    ids = np.arange(size, dtype=np.int32)
    return dataclasses.replace(
        found.batch,
        question=tokens(found.batch.question),
        answer=tokens(found.batch.answer),
        question_id=ids,
        answer_id=ids,
        positive_ids=np.broadcast_to(ids[:, None], found.batch.positive_ids.shape),
    )


def peak_memory() -> float:
    """The most that this process has held so far, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("shapes", "step"))
    parser.add_argument("--config", default="t5:xxl,sde", help="a recipe, with its arguments")
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--tensor", type=int, default=1, help="devices over which layers are split; the rest is fsdp")
    parser.add_argument("--batch", type=int, default=0, help="pairs a step; 0: the recipe's")
    parser.add_argument("--question_length", type=int, default=64)
    parser.add_argument("--answer_length", type=int, default=256)
    parser.add_argument("--remat", default="", help="see model.remat; empty: the recipe's")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", options.devices)
    rows = [{"shapes": shapes, "step": step}[options.what](options)]
    print(common.table(rows))
    common.write(options.json, vars(options), rows)


if __name__ == "__main__":
    main()
