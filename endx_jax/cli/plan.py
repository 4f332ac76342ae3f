"""`endx plan`: estimates the memory, FLOPs, collectives and time of a run on each device before it starts.

  endx plan --config=CONFIG [--topology=NAME | --chip=NAME] [--devices=N] [--encode] [--json=FILE]
      [--config.SECTION.KEY=VALUE ...]

CONFIG and its settings are those of `endx train`. Weights, data and devices are not needed. For a topology such as
v5e:4x4, or for N devices of a chip, the training step is compiled by the chip's own compiler, if it is installed
(extras compile-tpu and compile-gpu). Without a chip, the run is planned for all chips without compiling and, without
--devices, compiled for this machine too, where a few steps are timed. If the data can be read without a network, the
batches are those of training. With --encode, `endx encode` by the model of the run is planned in place of training.
"""

import argparse
import json
import pathlib

from endx_jax.planning.chips import CHIPS, chip_named
from endx_jax.settings import require


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    options, rest = _parser().parse_known_args(argv)

    from endx_jax.cli import train

    require(options.devices >= 0, f"--devices={options.devices}: give a positive number of devices")
    determined = options.topology and (options.chip or options.devices)
    require(not determined, "--topology determines chip and devices: remove --chip and --devices")
    require(not options.encode or bool(options.topology or options.chip), "--encode needs --topology or --chip")
    config, name, _ = train.parse_arguments(rest)

    from endx_jax.planning.topologies import topology_named, topology_of

    topology = topology_named(options.topology) if options.topology else None
    if options.chip:
        topology = topology_of(chip_named(options.chip), options.devices or 1)
    count = topology.size if topology else options.devices
    if count:
        _make_up(count)

    from endx_jax.experiment.config import resolve
    from endx_jax.files import write_text
    from endx_jax.parallel.console import say
    from endx_jax.planning import report
    from endx_jax.planning.machine import plan_machine
    from endx_jax.planning.plan import Plan, on_chips, plan_encoding, plan_topology
    from endx_jax.planning.runs import read_texts, stay_offline
    from endx_jax.planning.topologies import devices_of

    stay_offline()
    settings = resolve(config)
    if topology and options.encode:
        shown, contents = report.encodings(plan_encoding(settings, devices_of(topology)), name, topology)
    else:
        texts = read_texts(settings)
        if topology:
            planned = plan_topology(settings, texts, topology)
        else:
            chips = on_chips(settings, texts, CHIPS.values())
            planned = Plan(texts, chips, machine=None if count else plan_machine(settings, texts))
        shown, contents = report.format_plan(planned, name), report.as_dict(planned, name)
    say(shown)
    if options.json:
        write_text(options.json, json.dumps(contents, indent=1) + "\n")


def _make_up(count: int) -> None:
    """Configures `count` CPU devices; must be called before JAX initializes its backends."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)
    # Programs for other devices would be written to the cache, but cannot be read from it.
    jax.config.update("jax_enable_compilation_cache", False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="endx plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--topology", default="", metavar="NAME", help="topology, such as v5e:4x4, 2xv5p:4x4x4 or h200:8"
    )
    parser.add_argument("--chip", default="", metavar="NAME", help=f"chip: one of {', '.join(CHIPS)}")
    parser.add_argument(
        "--devices", type=int, default=0, metavar="N", help="number of devices [this machine's; 1 with --chip]"
    )
    parser.add_argument("--encode", action="store_true", help="plan `endx encode` in place of training")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="JSON file for all results")
    return parser
