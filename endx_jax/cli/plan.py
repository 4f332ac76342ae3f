"""`endx plan`: estimates the memory, FLOPs, collectives and time of a run on each device before it starts.

  endx plan --config=CONFIG [--topology=NAME | --chip=NAME] [--devices=N] [--encode] [--json=FILE]
      [--config.SECTION.KEY=VALUE ...]

CONFIG and its settings are those of `endx train`. Weights, data and devices are not needed. For a topology such as
v5e:4x4, or for N devices of a chip, the training step is compiled by the chip's own compiler, if it is installed
(extras compile-tpu and compile-gpu). Without a chip, the run is planned for all chips without compiling and, without
--devices, compiled for this machine too, where a few steps are timed. If the data can be read without a network, the
batches are those of training. With --encode, `endx encode` by the model of the run is planned in place of training.
"""

import pathlib
from json import dumps

from endx_jax.cli.parser import parser_of
from endx_jax.planning.chips import CHIPS, chip_named
from endx_jax.settings import require


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    chip = {"help": f"chip: one of {', '.join(CHIPS)}", "metavar": "NAME"}
    options, run = parser_of(__doc__, plan, chip=chip, topology={"metavar": "NAME"}).parse_known_args(argv)
    plan(*run, **vars(options))


def plan(
    *run: str,
    topology: str = "",
    chip: str = "",
    devices: int = 0,
    encode: bool = False,
    json: pathlib.Path | None = None,
) -> None:
    """Prints the plan of a run.

    Args:
      *run: config and settings of the run, as arguments of `endx train`
      topology: topology, such as v5e:4x4, 2xv5p:4x4x4 or h200:8
      chip: name of a chip, of `CHIPS`
      devices: number of devices [this machine's; 1 with --chip]
      encode: plan `endx encode` in place of training
      json: JSON file for all results
    """
    require(devices >= 0, f"--devices={devices}: give a positive number of devices")
    determined = topology and (chip or devices)
    require(not determined, "--topology determines chip and devices: remove --chip and --devices")
    require(not encode or bool(topology or chip), "--encode needs --topology or --chip")

    from endx_jax.cli.train import parse_arguments
    from endx_jax.planning.topologies import devices_of, topology_named, topology_of

    config, name, _ = parse_arguments([*run])
    on = topology_named(topology) if topology else topology_of(chip_named(chip), devices or 1) if chip else None
    count = on.size if on else devices
    if count:
        _make_up(count)

    from endx_jax.experiment.config import resolve
    from endx_jax.files import write_text
    from endx_jax.parallel.console import say
    from endx_jax.planning import report
    from endx_jax.planning.machine import plan_machine
    from endx_jax.planning.plan import Plan, on_chips, plan_encoding, plan_topology
    from endx_jax.planning.runs import read_texts, stay_offline

    stay_offline()
    settings = resolve(config)
    if on and encode:
        shown, contents = report.encodings(plan_encoding(settings, devices_of(on)), name, on)
    else:
        texts = read_texts(settings)
        if on:
            planned = plan_topology(settings, texts, on)
        else:
            chips = on_chips(settings, texts, CHIPS.values())
            planned = Plan(texts, chips, machine=None if count else plan_machine(settings, texts))
        shown, contents = report.format_plan(planned, name), report.as_dict(planned, name)
    say(shown)
    if json:
        write_text(json, dumps(contents, indent=1) + "\n")


def _make_up(count: int) -> None:
    """Configures `count` CPU devices, unless they are; must be called before JAX initializes its backends."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    if jax.config.values["jax_num_cpu_devices"] != count:
        jax.config.update("jax_num_cpu_devices", count)
    # Programs for other devices would be written to the cache, but cannot be read from it.
    jax.config.update("jax_enable_compilation_cache", False)
