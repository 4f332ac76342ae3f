"""Shared code of the benchmarks: description of the machine, alternating timing, tables and JSON.

Scripts in this folder run as `python benchmarks/X.py`, so that `import common` finds this file. Processes of
peers import it too, so it imports JAX in functions only.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# Some images set these, by which OpenBLAS, in NumPy and faiss too, takes slower kernels than the processor's. Scripts
# import this file before NumPy, and the processes of sides inherit the environment.
for _name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(_name, None)

median = statistics.median
# Seconds of the wall, or with CLOCK=processor those of all threads of this process, for machines that others use too.
clock = time.process_time if os.environ.get("CLOCK") == "processor" else time.perf_counter


def machine() -> dict[str, Any]:
    """Returns processor, cores that this process may use, memory in GB, operating system and devices."""
    import jax

    from endx_jax.parallel.environment import cores, processor

    devices = jax.devices()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "processor": processor(),
        "cores": cores(),
        "memory_gb": round(memory, 1),
        "system": platform.platform(),
        "devices": [len(devices), devices[0].platform, devices[0].device_kind],
    }


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions of Python, JAX, this library and `packages` (names as in pip)."""
    import endx_jax

    # endx_jax may be on the path without being installed.
    own = {"python": platform.python_version(), "endx_jax": endx_jax.__version__}
    return own | {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", *packages)}


def pairs_config(options: argparse.Namespace):
    """Returns a config without dropout for all pairs of `options.data`, SQuAD's folder or another `data.path`."""
    from endx_jax.data.formats import squad
    from endx_jax.methods.config import base_config

    config = base_config()
    is_squad = os.path.isdir(options.data)
    config.data.path = squad.files_of(options.data)[0] if is_squad else options.data
    config.data.pool = "answers" if is_squad else ""
    config.data.validation_fraction = config.data.test_fraction = 0.0
    config.data.question_length = config.data.answer_length = options.length
    config.model.update(pretrained=options.model, dropout=0.0, attention_dropout=0.0)
    config.train.update(global_batch_size=options.batch, epochs=0.0)
    config.seed = options.seed
    return config


def alternate(cases: Mapping[str, Callable[[], Any]], repeats: int, warmup: int = 1) -> dict[str, list[float]]:
    """Times all cases in alternation in this process, so that other load on the machine affects them alike.

    For comparisons with another library see sides.py.

    Args:
      cases: functions to time by name; each must return only when its result is computed.
      repeats: number of timed rounds, each of which runs every case once.
      warmup: number of rounds before them that are not timed.

    Returns:
      `repeats` durations of each case, in seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in range(warmup + repeats):
        for name, case in cases.items():
            start = clock()
            case()
            if round_ >= warmup:
                seconds[name].append(clock() - start)
    return seconds


def encode(model, records, folder: pathlib.Path) -> tuple[Any, Any]:
    """Returns a model's embeddings of questions and candidates, from the folder if they are there."""
    from endx_jax.inference.vector_cache import VectorCache

    cache, about = VectorCache(folder), {"width": model.width, "name": model.name}
    return (
        cache.embeddings(model.encode_query, records.questions, ("question", model.identity), **about),
        cache.embeddings(model.encode_document, records.candidates, ("answer", model.identity), **about),
    )


def memory(process: int | str = "self") -> dict[str, float]:
    """Returns the sizes in Linux's status of a process, such as VmRSS, its resident memory, and VmHWM, its peak: MB."""
    lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines if line.endswith("kB")}


def in_points(difference: Any) -> str:
    """Formats a `Difference` of two systems with its interval, in points."""
    return f"{100 * difference.mean:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Formats rows as a Markdown table; the columns are all keys in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(path: str | os.PathLike | None, settings: Mapping[str, Any], results: Sequence[Mapping[str, Any]], **more):
    """Writes a benchmark's JSON; does nothing if `path` is empty.

    Args:
      path: output file.
      settings: options of the script, with `seed`.
      results: rows of the table.
      **more: further entries; `versions` replaces the default one.
    """
    if not path:
        return
    content = {
        "machine": machine(),
        "versions": versions(),
        "seed": settings.get("seed", 0),
        "settings": dict(settings),
        "results": list(results),
        **more,
    }
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, default=str) + "\n")


@contextlib.contextmanager
def needs(what: str) -> Iterator[None]:
    """Context that ends the script with one line if an import in it fails; `what` are the packages for pip."""
    try:
        yield
    except ImportError as error:
        raise SystemExit(f"this benchmark needs {error.name}: pip install {what}") from None


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
