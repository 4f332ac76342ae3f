"""`endx train`: trains and evaluates a model and prints a table of results; run the same command to resume.

  endx train --config=CONFIG [--workdir=DIR] [--config.SECTION.KEY=VALUE ...]

CONFIG is a file with a `get_config` function, or the name of a recipe in the package, such as `quickstart`. A file may
also define a method as `METHOD` (docs/adding-a-method.md). The workdir is runs/NAME by default. These are the
settings, with their values in CONFIG if it is given, else their defaults:
"""

import pathlib
import re
import runpy
import time

from absl import flags
from ml_collections import ConfigDict, config_flags

import endx_jax
from endx_jax.errors import EndxError, nearest
from endx_jax.settings import flattened


def main(argv: list[str]) -> None:
    """Runs the verb with the arguments of the command line."""
    wanted = [argument for argument in argv if argument not in ("-h", "--help")]
    if wanted != argv:
        print(_help(wanted))
        return
    started = time.monotonic()
    config, name, workdir = parse(argv)

    from endx_jax.methods import find_method
    from endx_jax.parallel import distributed
    from endx_jax.parallel.console import say

    distributed.initialize()
    say(f"endx_jax {endx_jax.__version__}: {name} in {workdir}")
    from endx_jax.experiment.run import run

    results = run(config, workdir)
    say(f"{(time.monotonic() - started) / 60:.1f} minutes in total; results are in {workdir}")
    if results is not None:
        say(_next_steps(workdir) if find_method(config.objective.name).embeds else _next_steps_with_pairs(workdir))


def parse(argv: list[str]) -> tuple[ConfigDict, str, pathlib.Path]:
    """Parses the command line; returns the config with its overrides, its name, and the workdir.

    Raises:
      EndxError: an argument is invalid.
    """
    argv = ["endx train", *(_with_recipe_path(argument) for argument in argv)]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "the recipe", flag_values=values, sys_argv=argv)
    flags.DEFINE_string("workdir", None, "folder of the run", flag_values=values)
    try:
        rest = values(argv)[1:]
        config = values.config
    except (flags.Error, AttributeError, KeyError, OSError) as failure:
        raise EndxError(_explain(failure)) from None
    except SyntaxError as failure:
        raise EndxError(
            f"--config={failure.filename}, line {failure.lineno}: {failure.msg}; correct the Python file, or pass data "
            "with --config.data.path=FILE"
        ) from None
    if rest:
        raise EndxError(f"unexpected argument {rest[0]!r}; settings are given as --config.SECTION.KEY=VALUE")
    if config is None:
        from endx_jax.methods.config import recipe_files

        raise EndxError(f"--config is missing; give a file, or one of the recipes {', '.join(recipe_files())}")
    from endx_jax.experiment.config import agree_on_length

    agree_on_length(config.train, config_flags.get_override_values(values["config"]))
    file, _, arguments = config_flags.get_config_filename(values["config"]).partition(":")
    _register_method(file)
    name = re.sub(r"\W+", "_", f"{pathlib.Path(file).stem}_{arguments}").strip("_")
    return config, name, pathlib.Path(values.workdir or f"runs/{name}")


def _register_method(file: str) -> None:
    """Registers the method that a config file defines, if any."""
    from endx_jax.methods import register

    method = runpy.run_path(file).get("METHOD")
    if method is not None:
        register(method)


def _help(argv: list[str]) -> str:
    """Returns the usage and all settings with their values and descriptions."""
    from endx_jax.experiment.config import resolve
    from endx_jax.methods.config import base_config

    settings = flattened(resolve(parse(argv)[0] if argv else base_config()))
    lines = [f"  --config.{name}={value}\n      {declared['doc']}" for name, value, declared in settings]
    return "\n".join([__doc__.strip(), "", *lines])


def _with_recipe_path(argument: str) -> str:
    """Replaces `--config=NAME` by the file of the recipe NAME, unless NAME is a file."""
    flag, _, value = argument.partition("=")
    if flag.lstrip("-") != "config" or not value:
        return argument
    file, colon, arguments = value.partition(":")
    if pathlib.Path(file).is_file():
        return argument
    from endx_jax.methods.config import recipe_files

    files = recipe_files()
    if file not in files:
        raise EndxError(
            f"--config={file} is neither a file nor a recipe{nearest(file, files)}; the recipes are {', '.join(files)}"
        )
    return f"--config={files[file]}{colon}{arguments}"


def _explain(failure: Exception) -> str:
    """Converts an exception of the flag parser, whose messages have several lines, to one line."""
    lines = [line.strip().strip("'\"") for line in str(failure).replace("\\n", "\n").splitlines() if line.strip()]
    if isinstance(failure, AttributeError) and "get_config" in lines[0]:
        return "the file of --config has no function get_config that returns the settings"
    if isinstance(failure, AttributeError | KeyError):
        unknown = lines[0].strip("'\"\\")
        return f"unknown setting {unknown!r}; " + (lines[1] if len(lines) > 1 else "endx train --help lists them all")
    for line in lines:  # an EndxError of a recipe, wrapped by the flag parser
        if f"{EndxError.__name__}: " in line:
            return line.partition(f"{EndxError.__name__}: ")[2]
    return lines[0] if len(lines) < 3 else f"{lines[0]} {lines[-1]}"


def _next_steps(workdir: pathlib.Path) -> str:
    from endx_jax.experiment.workdir import run_index

    return f"""
Next steps:
  search {run_index(workdir).contents}, here or in a browser (needs pip install -e ".[serve]"):
    endx search --workdir={workdir} "QUESTION"
    endx serve --workdir={workdir}
  train on your own pairs (CSV, TSV or JSONL with columns question and answer, SQuAD JSON, a BEIR folder):
    endx train --config=minilm --workdir=runs/mine --config.data.path=FILE
  rank another data set with this model:
    endx evaluate --workdir={workdir} --data=FILE
  compute embeddings in Python:
    model = endx_jax.load("{workdir}"); model.encode_query("how do I reshape an array?")"""


def _next_steps_with_pairs(workdir: pathlib.Path) -> str:
    return f"""
Next steps:
  re-rank the answers of a dual encoder, the run RUN:
    endx search --workdir=RUN --rerank={workdir} "QUESTION"
    endx evaluate --workdir=RUN --rerank={workdir} --top=20"""
