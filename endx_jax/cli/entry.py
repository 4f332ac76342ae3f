"""Finds the verb, runs it, and turns mistakes into one line and exit status 2."""

import importlib
import os
import sys
from collections.abc import Callable

import endx_jax
from endx_jax.errors import TRY_AGAIN, EndxError, RunInterrupted, nearest

USAGE = """endx_jax {version}: answer retrieval with dual encoders, in JAX

usage: endx VERB [options]      (or: python -m endx_jax VERB [options])

  prepare   download and convert a data set, once   endx prepare reqa/squad
  mine      hard negatives, to train on             endx mine --data=pairs.csv --bm25 --output=mined
  train     train, evaluate and leave a workdir     endx train --config=quickstart
  evaluate  rank a data set with a trained model    endx evaluate --workdir=runs/quickstart
  compare   two runs, question by question          endx compare runs/a runs/b
  search    ask, at a prompt or in bulk             endx search --workdir=runs/quickstart "how to join paths"
  serve     answer in a browser and over HTTP       endx serve --workdir=runs/quickstart
  encode    a corpus of any size to an index        endx encode --workdir=runs/quickstart --corpus=corpus.jsonl
  export    the model, to take elsewhere            endx export --workdir=runs/quickstart --output=exported
  publish   an index, to a vector database          endx publish --index=DIR --to=http://HOST:19530
  layers    what each layer of a model retrieves    endx layers --model=all-MiniLM-L6-v2 --data=SQUAD_FOLDER
  analyse   figures of runs, and their data         endx analyse overlap --run=runs/quickstart --output=figures
  reproduce the papers' tables, expected and got    endx reproduce endx-table2 --budget=60
  plan      memory, time and traffic of a run       endx plan --config=t5:xxl,sde --devices=64

endx VERB --help tells what a verb takes."""


def run_verb(argv: list[str]) -> int:
    """Runs `argv[0]` with the rest of the arguments.

    Returns:
      The exit status: 0, 2 for a mistake of the user's (one line on standard error), 75 where the same command, given
      again, goes on (one line, too), 130 when interrupted, 141 when nobody reads the output any more.
    """
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE.format(version=endx_jax.__version__))
        return 0
    if argv[0] == "--version":
        print(endx_jax.__version__)
        return 0
    try:
        _verb(argv[0])(argv[1:])
    except (EndxError, RunInterrupted) as end:
        print(f"endx {argv[0]}: {end}", file=sys.stderr, flush=True)
        return _leave(TRY_AGAIN if isinstance(end, RunInterrupted) else 2)
    except BrokenPipeError:
        # What read the output, such as `head`, has seen enough. Python would complain of it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        hint = f"; the same command goes on {GOES_ON[argv[0]]}" if argv[0] in GOES_ON else ""
        print(f"endx {argv[0]}: interrupted{hint}", file=sys.stderr)
        return _leave(130)
    return 0


def _leave(status: int) -> int:
    """Returns the status; but one of several processes ends here: see `parallel.distributed.leave`."""
    if "jax" in sys.modules:
        from endx_jax.parallel.distributed import leave

        leave(status)
    return status


# Verbs that can be interrupted, and what they have then.
GOES_ON = {
    "train": "from the last checkpoint",
    "encode": "with the shards that are missing",
    "reproduce": "with what is missing",
}

VERBS = (
    "prepare", "mine", "train", "evaluate", "compare", "search", "serve", "encode", "export", "publish", "layers",
    "analyse", "reproduce", "plan",
)  # fmt: skip


def _verb(name: str) -> Callable[[list[str]], None]:
    if name not in VERBS:
        raise EndxError(f"unknown verb {name!r}{nearest(name, VERBS)}; the verbs are {', '.join(VERBS)}")
    # Before anything loads XLA: its notes on the machine are not for the reader of a training run.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # A verb is imported when it is run: each needs other libraries, some of them extras.
    return importlib.import_module(f"endx_jax.cli.{name}").main
