"""Time of imports, of first answers and of the first step: `python benchmarks/startup.py [import] [answer] [step]`.

import: seconds to import `endx_jax`, all modules that training needs, and sentence-transformers.
answer: seconds that `endx search` takes for a question, `endx serve` until it is ready (the first time, without caches,
and later), and Python to load a model and encode, beside `import jax`; needs --data, a folder of SQuAD 1.1.
step: seconds from the start of `endx train` (of the quickstart, unless --config is given, or --config.KEY=VALUE) to the
end of its first step; cold, with empty caches of compiled programs and docstrings, and warm, with those of the cold
start. The peer is sentence-transformers' trainer with the same pairs in a file.

Every figure is the median of fresh processes, run in alternation, with files in the operating system's cache.
Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import common
import large_index
import peer_trainer
from serving import Server

from endx_jax.cli import train
from endx_jax.data import reqa
from endx_jax.data.formats import squad
from endx_jax.data.sources import read_splits
from endx_jax.experiment.config import resolve
from endx_jax.pretrained import locate

IMPORTS = {"endx_jax": True, "endx_jax.experiment.run": True, "sentence_transformers": False}
PEER = "sentence-transformers"
LENGTH = 60  # characters of a text of `answer`
QUESTION = "Who won the title fight?"
ENCODE = "import json, sys, endx_jax; endx_jax.load(sys.argv[1]).encode_{}(json.load(open(sys.argv[2])))"


def imports(options: argparse.Namespace) -> list[dict]:
    """Measures imports, including start and end of the process; returns the rows of the table."""
    names = [name for name, ours in IMPORTS.items() if ours or options.peer]
    cases = {name: functools.partial(_process, [sys.executable, "-c", f"import {name}"]) for name in names}
    bare = "python alone"
    cases[bare] = functools.partial(_process, [sys.executable, "-c", ""])
    seconds = common.alternate(cases, options.repeats, warmup=min(1, options.repeats - 1))
    medians = {name: common.median(times) for name, times in seconds.items()}
    return [
        {"what": f"import {name}", "seconds": medians[name] - medians[bare], "processes": options.repeats}
        for name in names
    ]


def steps(options: argparse.Namespace, overrides: Sequence[str]) -> list[dict]:
    """Measures the first training step; returns the rows of the table."""
    cases = {"cold": [], "warm": []} | ({PEER: []} if options.peer else {})
    command = [sys.executable, "-m", "endx_jax", "train", f"--config={options.config}", *overrides]
    with tempfile.TemporaryDirectory() as folder:
        peer = _peer_command(pathlib.Path(folder), options.config, overrides) if options.peer else []
        for _ in range(options.step_repeats):
            with tempfile.TemporaryDirectory() as caches:
                for case in ("cold", "warm"):
                    cases[case].append(_first_step([*command, *_flags(caches, case)]))
            if peer:
                cases[PEER].append(_first_step(peer))
    return [
        {
            "what": f"first step, {case}",
            "seconds": common.median(times),
            "processes": len(times),
            "all_seconds": [round(seconds, 2) for seconds in times],
        }
        for case, times in cases.items()
    ]


def answers(options: argparse.Namespace) -> list[dict]:
    """Measures fresh processes up to their first answer; returns the rows of the table."""
    with tempfile.TemporaryDirectory() as name:
        cases = _answers(options, pathlib.Path(name))
        times: dict[str, list[float]] = {what: [] for what in cases}
        for round_ in range(1 + options.repeats):
            for what, case in cases.items():
                seconds = case()
                if round_:  # the first round fills the caches
                    times[what].append(seconds)
    bare = common.median(times["import jax"])
    return [
        {
            "what": what,
            "seconds": common.median(seconds),
            "of import jax": common.median(seconds) / bare,
            "processes": len(seconds),
            "all_seconds": [round(second, 2) for second in seconds],
        }
        for what, seconds in times.items()
    ]


def _answers(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Callable[[], float]]:
    """Returns functions by name that run a process and return the seconds until its answer."""
    made = {"data": options.data, "model": options.model, "seed": 0, "precision": "float32"}
    indexes = {count: folder / f"{count}.sqlite" for count in options.documents}
    for count, path in indexes.items():
        large_index.make(argparse.Namespace(**made, documents=count, encoded=count), path)
    texts = reqa.from_squad(squad.files_of(options.data)[0], "sentences").candidates[: options.texts]
    for kind, content in (("document", [text[:LENGTH] for text in texts]), ("query", [QUESTION])):
        (folder / f"{kind}.json").write_text(json.dumps(content))

    def python(code: str, *arguments: str) -> Callable[[], float]:
        return functools.partial(_seconds, [sys.executable, "-c", code, *arguments])

    def encode(kind: str) -> Callable[[], float]:
        return python(ENCODE.format(kind), options.model, str(folder / f"{kind}.json"))

    least = min(indexes)
    searches = {
        f"endx search, {count:,} documents": functools.partial(
            _seconds, [sys.executable, "-m", "endx_jax", "search", f"--index={path}", QUESTION]
        )
        for count, path in indexes.items()
    }
    return {
        "import jax": python("import jax"),
        **searches,
        f"endx serve ready, {least:,} documents, the first time": functools.partial(_served_first, indexes[least]),
        f"endx serve ready, {least:,} documents": functools.partial(_served, indexes[least]),
        f"load, and encode {options.texts:,} texts of at most {LENGTH} characters": encode("document"),
        "load, and encode one question": encode("query"),
    }


def _served(index: pathlib.Path, **variables: str) -> float:
    command = ["-m", "endx_jax", "serve", f"--index={index}"]
    server = Server(*command, environment=os.environ | variables)
    try:
        return server.wait()
    finally:
        server.stop()


def _served_first(index: pathlib.Path) -> float:
    with tempfile.TemporaryDirectory() as caches:
        return _served(index, XDG_CACHE_HOME=caches)


def _seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    _process(command)
    return time.perf_counter() - start


def _process(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _flags(caches: str, case: str) -> list[str]:
    return [
        f"--workdir={caches}/{case}",
        f"--config.data.cache={caches}/data",
        f"--config.train.compilation_cache={caches}/programs",
        "--config.train.log_every=1",
        "--config.train.stop_at_step=1",  # prints the line right after the step
    ]


def _first_step(command: Sequence[str]) -> float:
    """Returns the seconds from the start of a process to its line that begins with `step 1`."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("step 1"):
                seconds = time.perf_counter() - start
                process.kill()
                return seconds
        raise SystemExit(f"{' '.join(command)} made no step:\n{process.stderr.read()}")


def _peer_command(folder: pathlib.Path, config: str, overrides: Sequence[str]) -> list[str]:
    """Writes model and pairs of the config to a file; returns the command of the peer for it."""
    settings = resolve(train.parse_arguments([f"--config={config}", *overrides, "--config.data.cache="])[0])
    records = read_splits(settings.data).train
    job = {
        "folder": str(locate(settings.model.pretrained)),
        "questions": [records.questions[question] for question, _ in records.pairs],
        "answers": [records.candidates[answer] for _, answer in records.pairs],
        "batch": settings.train.global_batch_size,
        "length": max(settings.data.question_length, settings.data.answer_length),
        "temperature": settings.objective.temperature,
    }
    (folder / "job.json").write_text(json.dumps(job))
    return [sys.executable, str(pathlib.Path(peer_trainer.__file__)), str(folder / "job.json")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["import", "step"], help="import, answer, step [import and step]")
    parser.add_argument("--config", default="quickstart", help="a recipe; --config.KEY=VALUE changes it")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--data", type=pathlib.Path, help="folder of SQuAD 1.1, for `answer`")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="encoder of `answer`")
    parser.add_argument("--documents", nargs="*", type=int, default=[3000, 30_000], help="sizes of indexes of `answer`")
    parser.add_argument("--texts", type=int, default=1000, help="number of texts that `answer` encodes")
    parser.add_argument("--repeats", type=int, default=5, help="processes per import and answer")
    parser.add_argument("--step_repeats", type=int, default=3, help="processes per kind of first step")
    parser.add_argument("--json", default="")
    options, overrides = parser.parse_known_args()
    if "answer" in options.parts and not options.data:
        parser.error("answer needs --data, a folder of SQuAD 1.1")
    has_peer = options.peer and bool({"import", "step"} & {*options.parts})
    if has_peer:
        with common.needs(peer_trainer.NEEDED):
            importlib.metadata.version("sentence-transformers")
    results = imports(options) if "import" in options.parts else []
    if "answer" in options.parts:
        results += answers(options)
    if "step" in options.parts:
        results += steps(options, overrides)
    print(common.table(results))
    packages = ("transformers", "tokenizers", *(("torch", "sentence-transformers") if has_peer else ()))
    common.write(options.json, vars(options), results, overrides=overrides, versions=common.versions(*packages))


if __name__ == "__main__":
    main()
