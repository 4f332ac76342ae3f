"""`endx check`: reports problems in training data, and how well search works before training."""

import argparse
import dataclasses

from endx_jax.cli.data_flags import add_data_flags, data_settings


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    arguments = _parser().parse_args(argv)

    from endx_jax.data.settings import DataSettings
    from endx_jax.experiment.data_check import check_data
    from endx_jax.parallel.environment import keep_programs

    keep_programs()
    settings = DataSettings(path=arguments.data, test_path=arguments.test, split=arguments.split)
    print(check_data(dataclasses.replace(settings, **data_settings(arguments)), arguments.model))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="endx check", description=__doc__.partition(": ")[2].replace("\n", " "))
    parser.add_argument("data", help="file or folder of any supported format")
    parser.add_argument("--test", default="", help="test data, whose questions must not be in DATA [a share of DATA]")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="pretrained folder or name [all-MiniLM-L6-v2]")
    add_data_flags(parser, split="train")
    return parser
