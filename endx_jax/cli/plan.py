"""`endx plan`: what a run will need on each device before it begins: memory, work, traffic, and time at the very least.

  endx plan --config=CONFIG [--devices=N] [--chip=NAME] [--compile] [--json=FILE] [--config.SECTION.KEY=VALUE ...]

CONFIG and its settings are those of `endx train`. Neither weights nor data are needed, nor the devices: N of them are
made up on the CPU. Without --devices the run is planned for this machine too, for which its step is compiled. Where the
data can be read without a network, the batches are those that training would make.
"""

import argparse
import pathlib


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    options, rest = _parser().parse_known_args(argv)

    from endx_jax.cli import train
    from endx_jax.errors import EndxError

    if options.devices < 0:
        raise EndxError(f"--devices={options.devices}; give how many to plan for")
    config, name, _ = train.parse(rest)
    if options.devices:
        _make_up(options.devices)

    from endx_jax.experiment.config import resolve
    from endx_jax.parallel.console import say
    from endx_jax.planning import report, written
    from endx_jax.planning.chips import CHIPS, chip_named
    from endx_jax.planning.plan import plan
    from endx_jax.planning.subject import read_texts, stay_offline

    chips = [chip_named(options.chip)] if options.chip else list(CHIPS.values())
    stay_offline()
    settings = resolve(config)
    found = plan(settings, read_texts(settings), chips, compile_too=options.compile, here=not options.devices)
    say(report.text(found, name))
    if options.json:
        written.write(found, name, options.json)


def _make_up(count: int) -> None:
    """So many devices on the CPU; before anything touches a device."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="endx plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=0, metavar="N", help="to plan for [those that are here]")
    parser.add_argument("--chip", default="", metavar="NAME", help="v4, v5e, v5p, v6e, A100, H100 or H200 [all]")
    parser.add_argument("--compile", action="store_true", help="compile the step, and say what its program holds")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write everything there")
    return parser
