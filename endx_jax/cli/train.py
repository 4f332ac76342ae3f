"""`endx train`: trains and evaluates a model and prints a table of results; run the same command to resume.

  endx train --config=CONFIG [--workdir=DIR] [--config.SECTION.KEY=VALUE ...]

CONFIG is a file with a `get_config` function, or the name of a recipe in the package, such as `quickstart`. A file may
also define a method as `METHOD` (docs/adding-a-method.md). The workdir is runs/NAME by default. Settings are shown with
their values in CONFIG if it is given, else their defaults. Those that are changed most:
"""

import argparse
import pathlib
import re
import time

from absl import flags
from ml_collections import ConfigDict, config_flags

import endx_jax
from endx_jax.errors import EndxError, nearest
from endx_jax.json_files import shown
from endx_jax.settings import flattened

# Settings that begin the help.
MOST_CHANGED = (
    "data.path", "data.question_column", "data.answer_column", "data.answer_length", "model.pretrained",
    "train.epochs", "train.steps", "train.global_batch_size", "train.evaluate_every", "optimizer.learning_rate",
)  # fmt: skip

TYPES = {int: "a whole number", float: "a number", bool: "true or false"}


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    wanted = [argument for argument in argv if argument not in ("-h", "--help")]
    if wanted != argv:
        print(_help(wanted))
        return
    started = time.monotonic()
    config, name, workdir = parse_arguments(argv)

    from endx_jax.methods import find_method
    from endx_jax.parallel import distributed
    from endx_jax.parallel.console import say

    distributed.initialize()
    say(f"endx_jax {endx_jax.__version__}: {name} in {workdir}")
    from endx_jax.experiment.run import run

    results = run(config, workdir)
    place = "" if results is None else f"; results are in {workdir}"
    say(f"{(time.monotonic() - started) / 60:.1f} minutes in total{place}")
    if results is not None and distributed.is_primary():
        method = find_method(config.objective.name)
        say(_next_steps(workdir, config.data.path) if method.embeds else _next_steps_with_pairs(workdir))


def parse_arguments(argv: list[str]) -> tuple[ConfigDict, str, str]:
    """Parses the command line; returns the config with its overrides, its name, and the workdir."""
    parser = argparse.ArgumentParser(prog="endx train", add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("--workdir")
    options, rest = parser.parse_known_args(argv)

    from flax.traverse_util import flatten_dict

    from endx_jax.experiment.config import agree_on_length, check_method
    from endx_jax.methods.config import load_config, with_arguments

    config = load_config(options.config or "")
    flat = flatten_dict(config.to_dict(), sep=".")
    names = ["--config", "--workdir", *(f"--config.{name}" for name in flat)]
    for flag in (argument.partition("=")[0] for argument in rest if argument.startswith("--")):
        if re.sub("^--noconfig", "--config", flag) not in names:  # boolean settings may begin with `--noconfig`
            raise EndxError(f"unknown setting {flag}{nearest(flag, names) or '; endx train --help lists them all'}")
    values, argv = flags.FlagValues(), ["endx train", *rest]
    config_flags.DEFINE_config_dict("config", config, "the recipe", flag_values=values, sys_argv=argv)
    try:
        rest = values(argv)[1:]
    except flags.Error as failure:
        if not (given := re.match(r"flag --config\.(\S+?)=(.*?): ", str(failure), re.DOTALL)):
            raise EndxError(str(failure)) from None
        expected = TYPES.get(type(flat[given[1]]), "a list")
        raise EndxError(f"--config.{given[1]} is {shown(given[2])}; it must be {expected}") from None
    if rest:
        raise EndxError(f"unexpected argument {rest[0]!r}; settings are given as --config.SECTION.KEY=VALUE")
    overrides = config_flags.get_override_values(values["config"])
    agree_on_length(values.config.train, overrides)
    check_method(flat.get("objective.name", ""), overrides)
    file, _, arguments = with_arguments(options.config)
    name = re.sub(r"\W+", "_", f"{pathlib.Path(file).stem}_{arguments}").strip("_")
    return values.config, name, options.workdir or f"runs/{name}"


def _help(argv: list[str]) -> str:
    """Returns the usage and all settings with their values and descriptions, those that are changed most first."""
    from endx_jax.experiment.config import resolve
    from endx_jax.methods.config import base_config

    settings = list(flattened(resolve(parse_arguments(argv)[0] if argv else base_config())))
    lines = {name: (f"  --config.{name}={value}", declared["doc"]) for name, value, declared in settings}
    flag_width = max(len(lines[name][0]) for name in MOST_CHANGED)
    phrases = re.compile(r"\.?$|[.:;] | \(")
    first = [f"{flag:{flag_width}}  {phrases.split(doc)[0]}" for flag, doc in map(lines.__getitem__, MOST_CHANGED)]
    rest = [f"{flag}\n      {doc}" for flag, doc in lines.values()]
    return "\n".join([__doc__.strip(), "", *first, "", "All settings:", "", *rest])


def _next_steps(workdir: str, data: str) -> str:
    from endx_jax.experiment.workdir import run_index
    from endx_jax.index.index import Index

    further = f"""encode other documents, for endx serve --index={workdir}/corpus:
    endx encode --workdir={workdir} --corpus=FILE --output={workdir}/corpus"""
    if data == "docstrings":
        further = """train on your own pairs (CSV or JSONL with columns question and answer, SQuAD JSON, a BEIR folder):
    endx train --config=minilm --workdir=runs/mine --config.data.path=FILE"""
    return f"""
Next steps:
  search {Index(run_index(workdir))}, here or in a browser (needs pip install -e ".[serve]"):
    endx search --workdir={workdir} "QUESTION"
    endx serve --workdir={workdir}
  {further}
  rank another data set with this model:
    endx evaluate --workdir={workdir} --data=FILE
  compute embeddings in Python:
    model = endx_jax.load("{workdir}"); model.encode_query("how do I reshape an array?")"""


def _next_steps_with_pairs(workdir: str) -> str:
    return f"""
Next steps:
  re-rank the answers of a dual encoder, the run RUN:
    endx search --workdir=RUN --rerank={workdir} "QUESTION"
    endx evaluate --workdir=RUN --rerank={workdir} --top=20"""
