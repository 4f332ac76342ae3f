"""Entry point: runs a verb, converts user errors to one line and exit status 2, and sets memory pages of a process."""

import contextvars
import functools
import glob
import importlib
import io
import itertools
import os
import re
import shlex
import sys
import traceback
import types
from collections.abc import Callable, Sequence

import endx_jax
from endx_jax.errors import INTERRUPTED, Disagreement, EndxError, RunInterrupted, first_line, nearest

USAGE = """endx_jax {version}: answer retrieval with dual encoders, in JAX

usage: endx VERB [options]      (or: python -m endx_jax VERB [options])

  prepare     download and convert a data set         endx prepare reqa/squad
  check       check a data set before training        endx check pairs.csv
  mine        find hard negatives for training        endx mine --data=pairs.csv --bm25 --output=mined
  generate    questions by a language model           endx generate --corpus=docs --endpoint=URL --model=M --output=FILE
  train       train, evaluate, write a workdir        endx train --config=quickstart
  merge       average runs of one architecture        endx merge runs/a runs/b --output=merged
  evaluate    rank a data set with a model            endx evaluate --workdir=runs/quickstart
  compare     compare two runs by question            endx compare runs/a runs/b
  search      search, at a prompt or in bulk          endx search --workdir=runs/quickstart "how to join paths"
  serve       serve search over HTTP                  endx serve --workdir=runs/quickstart
  encode      encode a corpus into an index           endx encode --workdir=runs/quickstart --corpus=corpus.jsonl
  export      write a model for other libraries       endx export --workdir=runs/quickstart --output=exported
  push        upload a model to the hub               endx push runs/quickstart OWNER/NAME
  publish     copy an index to a vector database      endx publish --index=FILE --to=http://HOST:19530
  plan        estimate memory and time of a run       endx plan --config=t5:xxl,sde --devices=64

Models are a folder, a hub id (`hf cache ls` lists those on this machine), all-MiniLM-L6-v2 or glove-6b-50d.
endx VERB --help lists the arguments of a verb."""


def run_verb(argv: list[str]) -> int:
    """Runs `argv[0]` with the rest of the arguments; returns the exit status: see `guarded`."""
    verb = " ".join(argv[:1])
    return guarded(
        f"endx {verb}",
        f"endx {shlex.join(argv)}",
        functools.partial(_run, argv),
        resumes=RESUMES.get(verb, ""),
        smaller=SMALLER.get(verb, SMALLER_DATA),
    )


def _run(argv: list[str]) -> None:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(USAGE.format(version=endx_jax.__version__))
        return
    if argv[0] == "--version":
        print(endx_jax.__version__)
        return

    from endx_jax.files import expanded

    # Shells expand `~` in `--workdir ~/runs/a`, not in `--workdir=~/runs/a`, which would make a folder named `~`.
    arguments = [re.sub(r"^(--[\w.-]+=)~(?=/)", lambda flag: f"{flag[1]}{expanded('~')}", one) for one in argv[1:]]
    _refuse_repeated(arguments)
    contextvars.copy_context().run(_verb(argv[0]).main, arguments)  # what flags set ends with the verb


# Advice after running out of memory.
SMALLER_DATA = "end other programs, or use less data at a time"


def guarded(
    program: str, command: str, work: Callable[[], object], *, resumes: str = "", smaller: str = SMALLER_DATA
) -> int:
    """Runs the work of a command line, and converts its errors to one line on standard error.

    Args:
      program: beginning of that line.
      command: the whole command line.
      work: function of the work.
      resumes: the point from which the same command resumes after an interrupt; empty if it does not.
      smaller: advice after running out of memory.

    Returns:
      The exit status: 0; 2 after a user error; 75 if the same command resumes the work; 130 after an interrupt; 141 if
      the output pipe was closed.
    """
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # as stderr does, for characters outside its encoding
    try:
        work()
        print(end="", flush=True)
    except (EndxError, RunInterrupted, Disagreement) as end:
        return _leave(end.status, str(end), program)
    except BrokenPipeError:
        # The reader of the output, such as `head`, closed it. Without this, Python prints an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as end:
        hint = f"; the same command resumes {resumes}" if resumes else ""
        return _leave(INTERRUPTED, f"{end}: {command}" if end.args else f"interrupted{hint}", program)
    except Exception as failure:
        # XLA and JAX name these only in the message.
        if isinstance(failure, MemoryError) or str(failure).startswith("RESOURCE_EXHAUSTED"):
            reason = f"out of memory: {first_line(failure)}; {smaller}"
        elif traceback.extract_tb(failure.__traceback__)[-1].filename.endswith("xla_bridge.py"):
            said = first_line(failure) if failure.args else "JAX has no such device; unset it, or install jax[cuda13]"
            reason = f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}: {said}"
        else:
            if "jax" in sys.modules:
                from endx_jax.parallel.distributed import exit_after

                exit_after(failure)
            raise
        return _leave(2, reason, program)
    return 0


def _refuse_repeated(arguments: Sequence[str]) -> None:
    """Raises EndxError if an option of `ONCE` has two values; argparse would use only the last."""
    values: dict[str, str] = {}
    for argument, following in itertools.pairwise([*arguments, ""]):
        if flag := re.fullmatch(r"(--[\w.-]+)(=.*)?", argument, re.DOTALL):
            value = flag[2][1:] if flag[2] else following
            if flag[1] in ONCE and values.setdefault(flag[1], value) != value:
                raise EndxError(f"{flag[1]} is given as {values[flag[1]]!r:.60} and as {value!r:.60}: give one of them")


def _leave(status: int, message: str, program: str) -> int:
    """Prints a message on standard error and returns the status; exits with it if this is one of several processes."""
    sys.stderr.write(f"{program}: {message}\n")  # in one piece, also if the stream has no buffer
    sys.stderr.flush()
    if "jax" in sys.modules:
        from endx_jax.parallel.distributed import exit_if_distributed

        exit_if_distributed(status, message)
    return status


# Options that may not have two values, which look like a list. Others may be repeated, and the last value counts.
ONCE = ("--corpus", "--data", "--index", "--questions", "--add", "--where")

# Advice by verb after running out of memory.
SMALLER = {
    "train": "set a smaller --config.train.tower_chunk or --config.data.answer_length",
    "plan": "plan for fewer devices, or on a machine with more memory",
    **dict.fromkeys(("search", "serve"), "end other programs, or encode the index with --precision=float16 or int8"),
}

# Verbs that resume after an interrupt, and the point from which.
RESUMES = {
    "train": "from its checkpoint, if any",
    "encode": "after the last documents that it wrote",
    "generate": "after its last answers",
}

VERBS = re.findall(r"^  (\w+) ", USAGE, re.MULTILINE)


def _verb(name: str) -> types.ModuleType:
    if name not in VERBS:
        raise EndxError(f"unknown verb {name!r}{nearest(name, VERBS)}; the verbs are {', '.join(VERBS)}")
    # Silence XLA's messages about the machine. This has to precede the import of JAX.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Import only the module of this verb, as verbs need different libraries, some of them optional.
    return importlib.import_module(f"endx_jax.cli.{name}")


# XLA allocates the buffers of each step anew, and the system maps them page by page. With large pages this takes a
# tenth of the time (docs/performance.md). glibc reads this variable at program start only.
TUNABLES = "glibc.malloc.hugetlb=1"
ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*")


def use_large_pages() -> None:
    """Restarts this program in its own process, so that glibc allocates large pages.

    Does nothing if `GLIBC_TUNABLES` is already set or there is an accelerator.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ or any(map(glob.glob, ACCELERATORS)):
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {"GLIBC_TUNABLES": TUNABLES})
