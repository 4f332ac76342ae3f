"""How near the estimates of `endx plan` come to what is compiled: `python benchmarks/planning.py [--only NAME ...]`.

Plans each configuration on eight virtual devices as `endx plan` does before it compiles anything, then compiles the
very step, and compares: bytes of the state and the batch, which are equal but for what a step is given and does not
read; the peak; the results of collectives. Without data all texts are as long as they may be. In float32, because a
CPU's compiler widens bfloat16.

Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import time

import common
import jax

from endx_jax.experiment.config import Settings, resolve
from endx_jax.methods.config import load_recipe
from endx_jax.planning.compiled import compile_step
from endx_jax.planning.estimate import Estimate, estimate
from endx_jax.planning.subject import Texts, outline_run

DEVICES = 8
NO_DATA = Texts(None, "not read")
DROPOUT = {"model.dropout": 0.1, "model.attention_dropout": 0.1}
SHORT = {"data.question_length": 32, "data.answer_length": 64}
SPLIT = {"mesh.fsdp": 4, "mesh.tensor": 2, "train.global_batch_size": 256}
# By name: the recipe, and what is changed in it.
CASES = {
    "minilm": ("minilm_squad", {}),
    "minilm, dropout": ("minilm_squad", DROPOUT),
    "minilm, 32 rows a device": (
        "minilm_squad",
        {"train.global_batch_size": 256, "data.question_length": 64, "data.answer_length": 128},
    ),
    "minilm, adafactor": ("minilm_squad", {"optimizer.name": "adafactor"}),
    "minilm, sgd": ("minilm_squad", {"optimizer.name": "sgd"}),
    "minilm, chunked": ("minilm_squad", {"train.global_batch_size": 256, "train.tower_chunk": 8}),
    "minilm, loss in tiles": ("minilm_squad", {"train.global_batch_size": 2048, "objective.loss_tile": 128}),
    "minilm, scan, remat": (
        "minilm_squad",
        {"train.global_batch_size": 256, "model.scan_layers": True, "model.remat": "full"},
    ),
    "minilm, fsdp 8": ("minilm_squad", {"train.global_batch_size": 256, "mesh.fsdp": 8}),
    "minilm, fsdp 4 x tensor 2": ("minilm_squad", SPLIT),
    "bert base": ("bert_base_sde", {**SHORT, "train.global_batch_size": 64}),
    "t5 small": ("t5:small,sde", {**SHORT, "train.global_batch_size": 64}),
    "t5 small, fsdp 4 x tensor 2, scan": ("t5:small,sde", {**SPLIT, **SHORT, "model.scan_layers": True}),
    "gru": ("gru_squad:dual", {}),
    "gru, endx": ("gru_squad:endx", {}),
    "minilm, endx": ("endx_minilm_squad", {}),
    "vae": ("vae_squad:cross_vae", {}),
    "triplets": ("fcrr", {}),
}


def settings_of(name: str) -> Settings:
    """Of one configuration."""
    recipe, changes = CASES[name]
    module, _, arguments = recipe.partition(":")
    make = load_recipe(module).get_config
    config = make(arguments) if arguments else make()
    config.update_from_flattened_dict({"train.tower_chunk": 0, **changes, "model.dtype": "float32"})
    return resolve(config)


def measure(name: str) -> dict:
    """The row of one configuration."""
    settings, start = settings_of(name), time.perf_counter()
    subject = outline_run(settings, NO_DATA).on(None)
    found = estimate(subject)
    planned = time.perf_counter()
    compiled = compile_step(subject)
    peak = found.memory.peak
    print(f"{name}: {peak / 1e6:,.0f} of {compiled.peak / 1e6:,.0f} MB", flush=True)
    return {
        "configuration": name,
        "state and batch, MB": compiled.arguments / 1e6,
        "of that, planned": f"{given(found) / compiled.arguments:.4%}",
        "peak, estimated, MB": peak / 1e6,
        "peak, compiled, MB": compiled.peak / 1e6,
        "difference": f"{peak / compiled.peak - 1:+.0%}",
        "collectives, by rule, MB": sum(one.bytes for one in found.traffic) / 1e6,
        "compiled, MB": sum(total for _, total in compiled.collectives.values()) / 1e6,
        "planned, s": planned - start,
        "compiled, s": time.perf_counter() - planned,
    }


def given(found: Estimate) -> int:
    """Bytes that a step is given."""
    return found.memory.parameters + found.memory.optimizer + found.memory.batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    results = [measure(name) for name in options.only]
    print(common.table(results))
    common.write(options.json, vars(options), results)


if __name__ == "__main__":
    main()
