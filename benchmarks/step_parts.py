"""Where does the time of a training step go? `python benchmarks/step_parts.py --data=FOLDER [--batch=128]`.

Traces one step of `benchmarks/training.py`, after two that warm up, and adds up what the devices' operations took, by
the part of the model that asked for them. On a CPU operations run side by side, so the sum is more than the step takes.

Prints a table and, with --json=FILE, writes it with the machine and the versions.
"""

import collections
import glob
import gzip
import json
import re
import tempfile
from collections.abc import Iterable

import common
import jax
import training

from endx_jax.cli.memory import use_large_pages

# The first that is found in an operation's name has it.
PARTS = (
    ("token table", r"token_embedder"),
    ("attention: products with weights", r"attention/(query|key|value|output)/(dot_general|transpose)"),
    ("attention: scores, softmax, values", r"attention/(?!gather)|/attention$"),
    ("laying out", r"gather|sort|cumsum|pad$"),
    ("feed-forward: products", r"mlp_(up|down|gate)/(dot_general|transpose)"),
    ("activation", r"erf|layers_\d+/(mul|add|div|sub|exp|neg|integer_pow)$"),
    ("norms, residuals", r"norm"),
    ("other of the encoder", r"encoder"),
    ("loss, optimizer, rest", r""),
)


def durations(folder: str) -> dict[str, float]:
    """Milliseconds by operation of a trace."""
    found: dict[str, float] = collections.Counter()
    for file in glob.glob(f"{folder}/**/*.trace.json.gz", recursive=True):
        with gzip.open(file) as stream:
            events = json.load(stream)["traceEvents"]
        for event in events:
            if event.get("ph") == "X" and event.get("args", {}).get("hlo_module") == "jit_train_step":
                found[event["args"]["hlo_op"]] += event["dur"] / 1e3
    return found


def names(programs: Iterable) -> dict[str, str]:
    """What each operation of the compiled programs is for."""
    lines = [line for program in programs for line in program.as_text().splitlines()]
    found = (re.match(r'\s*(?:ROOT )?%?([\w.\-]+) = .*op_name="([^"]*)"', line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def part_of(name: str) -> str:
    """The part of the model that an operation belongs to."""
    return next(part for part, pattern in PARTS if re.search(pattern, name))


def main() -> None:
    options = training.arguments(__doc__).parse_args()
    step = training.OurStep(training.configure(options), 3)
    for _ in range(2):
        step()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            step()
        took = durations(folder)
    known = names(step.programs())
    parts: dict[str, float] = collections.Counter()
    for operation, time in took.items():
        parts[part_of(known.get(operation, ""))] += time
    total = sum(parts.values())
    rows = [{"part": part, "milliseconds": parts[part], "share": parts[part] / total} for part, _ in PARTS]
    print(common.table(rows))
    common.write(options.json, vars(options), rows)


if __name__ == "__main__":
    use_large_pages()
    main()
