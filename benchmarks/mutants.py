"""Mutants of the package and the tests that kill them: `python benchmarks/mutants.py draw|cover|run|table FOLDER`.

A mutant is a copy of the package with one small defect. `draw` chooses mutants evenly over the packages, by a seed, in
place of those of the list that no longer apply.
`cover` runs the suite once and notes which tests run which lines. `run` applies one mutant at a time, in a copy of the
checkout, runs the tests that run its lines, and appends those that fail to `killed.jsonl`. `table` prints how many were
killed. `run` can be interrupted and repeated, with `--packages`, `--limit` and `--seconds`, at low priority.

A mutant names the lines that it replaces, so that it outlives changes elsewhere in the file; `run` counts one whose
lines are gone as stale.
"""

import argparse
import ast
import collections
import itertools
import json
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import coverage

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "endx_jax"
LIST = pathlib.Path(__file__).with_name("mutants.jsonl")
COUNT = 300
# Seconds after which a test of a mutant counts as failed: a mutant may loop for ever.
PATIENCE = 600
# Largest number of tests that run for a mutant, those of its own module first.
MOST_TESTS = 150
SWAPPED = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", " in ": " not in ", " not in ": " in ",
    " is ": " is not ", " is not ": " is ", "+": "-", "-": "+", "*": "+", "/": "*", "//": "*", "and": "or", "or": "and",
    "|": "&", "&": "|",
}  # fmt: skip
DTYPES = {"float32": "float16", "int32": "int16", "float64": "float32", "bfloat16": "float16", "int64": "int32"}


def mutations(source: str) -> Iterator[tuple[str, str, str]]:
    """Yields (kind, lines, other lines) for each small defect that a module may have."""
    lines = source.splitlines(keepends=True)
    tree = ast.parse(source)
    skipped = {id(inner) for node in ast.walk(tree) for outer in _annotations(node) for inner in ast.walk(outer)}

    def replaced(kind: str, start: tuple[int, int], end: tuple[int, int], new: str) -> tuple[str, str, str]:
        (first, a), (last, b) = start, end
        before = "".join(lines[first - 1 : last])
        # Offsets of the tree are in bytes of UTF-8.
        head, tail = lines[first - 1].encode()[:a].decode(), lines[last - 1].encode()[b:].decode()
        return kind, before, head + new + tail

    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        begin = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        end = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
        match node:
            case ast.If() | ast.While() | ast.IfExp():
                text = ast.get_source_segment(source, node.test)
                yield replaced("condition", *_place(node.test), f"(not ({text}))")
            case ast.UnaryOp(op=ast.Not()):
                yield replaced("condition", begin, end, f"({ast.get_source_segment(source, node.operand)})")
            case ast.Compare(ops=[_], comparators=[right]):
                yield from _operator(source, "comparison", node.left, right, replaced)
            case ast.BinOp():
                yield from _operator(source, "arithmetic", node.left, node.right, replaced)
            case ast.BoolOp(values=[left, right]):
                yield from _operator(source, "condition", left, right, replaced)
            case ast.Constant(value=bool(value)):
                yield replaced("constant", begin, end, str(not value))
            case ast.Constant(value=int(value)) if 0 <= value < 10_000:
                yield replaced("constant", begin, end, str(value + 1))
            case ast.Constant(value=str(value)) if value in DTYPES:
                yield replaced("dtype", begin, end, repr(DTYPES[value]))
            case ast.Attribute(attr=name) if name in DTYPES:
                yield replaced("dtype", begin, end, f"{ast.get_source_segment(source, node.value)}.{DTYPES[name]}")
            case ast.Call(args=[ast.Name() as first, ast.Name() as second, *_]):
                names = f"{second.id}, {first.id}"
                yield replaced("swapped arguments", _place(first)[0], _place(second)[1], names)
        if isinstance(node, ast.Call) and len(node.args) + len(node.keywords) > 1:
            others = [_place(one)[1] for one in (*node.args, *node.keywords)]
            for one in node.keywords:
                before = [place for place in others if place < _place(one)[1]]
                if one.arg not in (None, "strict") and before:
                    yield replaced("dropped argument", max(before), _place(one)[1], "")
        for body in (getattr(node, name, []) for name in ("body", "orelse", "finalbody")):
            for one, two in itertools.pairwise(body) if isinstance(body, list) else ():
                simple = all(isinstance(part, ast.Assign | ast.Expr | ast.AugAssign) for part in (one, two))
                if simple and not isinstance(getattr(one, "value", None), ast.Constant) and one.end_lineno < two.lineno:
                    parts = ["".join(lines[part.lineno - 1 : part.end_lineno]) for part in (one, two)]
                    between = "".join(lines[one.end_lineno : two.lineno - 1])
                    yield "order", parts[0] + between + parts[1], parts[1] + between + parts[0]


def _place(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _annotations(node: ast.AST) -> list[ast.AST]:
    """Returns the parts of a node that do not run, such as annotations and docstrings, and `strict` of `zip`.

    What is zipped has equal lengths, unless the package has another defect.
    """
    parts = [getattr(node, "annotation", None), getattr(node, "returns", None), *getattr(node, "decorator_list", [])]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        parts.append(node)
    if isinstance(node, ast.keyword) and node.arg == "strict":
        parts.append(node.value)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        parts.append(node)
    return [part for part in parts if part is not None]


def _operator(source: str, kind: str, left: ast.AST, right: ast.AST, replaced) -> Iterator[tuple[str, str, str]]:
    """Yields the replacement of the operator between two operands on one line."""
    (_, start), (end, _) = _place(left), _place(right)
    if start[0] == end[0]:
        text = source.splitlines()[start[0] - 1].encode()[start[1] : end[1]].decode()
        stripped = text.strip(" ()")
        new = SWAPPED.get(stripped) or SWAPPED.get(f" {stripped} ", "").strip()
        if new:
            yield replaced(kind, start, end, text.replace(stripped, new))


def draw(count: int, seed: int, drawn_before: list[dict]) -> list[dict]:
    """Draws mutants, equally many from each package and, within one, from each kind of defect as far as possible.

    Those of `drawn_before` that still apply stay where they are.
    """
    random_ = random.Random(seed)
    by_package: dict[str, dict[str, list[dict]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        source, parts = file.read_text(), file.relative_to(ROOT / PACKAGE).parts
        for kind, before, after in mutations(source):
            if source.count(before) == 1 and before != after and _is_code(source.replace(before, after)):
                mutant = {"file": str(file.relative_to(ROOT)), "kind": kind, "before": before, "after": after}
                if mutant not in drawn_before:
                    by_package[parts[0] if len(parts) > 1 else ""][kind].append(mutant)
    drawn: list[dict] = []
    packages = sorted(by_package)
    while len(drawn) < count:
        if len(drawn) < len(drawn_before) and _applies(drawn_before[len(drawn)]):
            drawn.append(drawn_before[len(drawn)])
            continue
        kinds = by_package[packages[len(drawn) % len(packages)]]
        kind = random_.choice(sorted(kinds))
        drawn.append(kinds[kind].pop(random_.randrange(len(kinds[kind]))))
        if not kinds[kind]:
            del kinds[kind]
    return drawn


def _applies(mutant: dict) -> bool:
    file = ROOT / mutant["file"]
    return file.exists() and file.read_text().count(mutant["before"]) == 1


def _is_code(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def copied(folder: pathlib.Path) -> pathlib.Path:
    """Copies the files of the checkout that git knows, and returns the folder of the copy."""
    copy = folder / "checkout"
    shutil.rmtree(copy, ignore_errors=True)
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, names):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


def pytest_in(copy: pathlib.Path, *arguments: str, seconds: float | None = None) -> tuple[int, str]:
    """Runs pytest on a copy of the checkout; returns its status, -1 if the time is over, and its output."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    compiled = str(copy.parent / "compiled")  # safe to share: another program has another key
    environment = os.environ | {"PYTHONPATH": str(copy), "JAX_COMPILATION_CACHE_DIR": compiled}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return -1, f"ERROR: no end after {seconds} seconds"
    return done.returncode, done.stdout + done.stderr


def failures(output: str) -> list[str]:
    """Returns the names of the tests that failed, and errors of pytest itself, in its output."""
    named = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR ", "ERROR: "))]
    return [line if line.startswith("ERROR: ") else line.partition(" ")[2].partition(" - ")[0] for line in named]


def cover(folder: pathlib.Path, workers: int, tests: list[str]) -> None:
    """Runs the suite, or a part of it, once; writes `lines.json`: for each file and line the tests that run it."""
    copy = copied(folder)
    flags = [f"--cov={PACKAGE}", "--cov-context=test", "--cov-report=", "--cov-fail-under=0"]
    # With a way to distribute tests, which pyproject.toml has, pytest-cov leaves the contexts to workers, even to none.
    processes = ["-n", str(workers)] if workers else ["-n", "0", "--dist=no"]
    status, output = pytest_in(copy, *processes, "-m", "not slow", *flags, *tests)
    (folder / "cover.txt").write_text(output)
    if status not in (0, 1):
        raise SystemExit(f"the suite ended with status {status}: see {folder / 'cover.txt'}")
    data = coverage.CoverageData(str(copy / ".coverage"))
    data.read()
    failed = set(failures(output))  # they would fail for every mutant
    found: dict[str, dict[int, list[str]]] = {}
    for file in data.measured_files():
        contexts = data.contexts_by_lineno(file)
        name = str(pathlib.Path(file).relative_to(copy))
        found[name] = {
            line: sorted({test.rpartition("|")[0] for test in tests if test} - failed)
            for line, tests in contexts.items()
        }
    (folder / "lines.json").write_text(json.dumps(found))


def tests_of(mutant: dict, source: str, lines: dict[str, dict[str, list[str]]]) -> list[str]:
    """Returns the tests that run the lines of a mutant, or else lines of its file, those of its module first."""
    start = source[: source.index(mutant["before"])].count("\n") + 1
    stop = start + mutant["before"].count("\n")
    of_file = lines.get(mutant["file"], {})
    found = {test for line in range(start, stop + 1) for test in of_file.get(str(line), ())}
    found = found or {test for tests in of_file.values() for test in tests}  # the lines run at the import
    stem = pathlib.Path(mutant["file"]).stem
    return sorted(found, key=lambda test: (f"test_{stem}" not in test, test))[:MOST_TESTS]


def run(folder: pathlib.Path, mutants: list[dict], packages: list[str], limit: int | None, seconds: float) -> None:
    """Runs the mutants without an outcome in `killed.jsonl`, and appends those of each."""
    journal, lines = folder / "killed.jsonl", json.loads((folder / "lines.json").read_text())
    done = {line["mutant"] for line in map(json.loads, journal.read_text().splitlines())} if journal.exists() else set()
    copy, end = copied(folder), time.monotonic() + seconds
    for number, mutant in enumerate(mutants):
        if number in done or (limit is not None and number >= limit) or time.monotonic() > end:
            continue
        if packages and _package(mutant["file"]) not in packages:
            continue
        began = time.monotonic()
        outcome: dict = {"mutant": number, "file": mutant["file"], "kind": mutant["kind"], "status": "stale"}
        if _applies(mutant):
            source = (ROOT / mutant["file"]).read_text()
            tests = tests_of(mutant, source, lines)
            _write(copy / mutant["file"], source.replace(mutant["before"], mutant["after"]))
            status, output = (
                pytest_in(copy, "--maxfail=3", "-m", "not slow", *tests, seconds=PATIENCE) if tests else (0, "")
            )
            _write(copy / mutant["file"], source)
            outcome |= {"status": "killed" if status else "survived", "tests": len(tests), "by": failures(output)}
        with journal.open("a") as file:
            file.write(json.dumps(outcome | {"seconds": round(time.monotonic() - began)}) + "\n")


def _write(file: pathlib.Path, source: str) -> None:
    """Writes a module and drops its compiled form, which Python may take for that of the new source."""
    file.write_text(source)
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
        compiled.unlink()


def table(folder: pathlib.Path) -> str:
    """Returns the numbers of mutants by package and status, and a line for each that survived."""
    rows = [json.loads(line) for line in (folder / "killed.jsonl").read_text().splitlines()]
    counted = collections.Counter((_package(row["file"]), row["status"]) for row in rows)
    statuses = ("killed", "survived", "stale")
    text = ["| package | " + " | ".join(statuses) + " |", "|---|" + "---|" * len(statuses)]
    for package in [*sorted({package for package, _ in counted}), "all"]:
        numbers = [
            sum(n for (of, what), n in counted.items() if package in (of, "all") and what == one) for one in statuses
        ]
        text.append(f"| {package} | " + " | ".join(map(str, numbers)) + " |")
    survivors = [f"{row['mutant']}: {row['file']}, {row['kind']}" for row in rows if row["status"] == "survived"]
    return "\n".join([*text, "", *survivors])


def _package(file: str) -> str:
    parts = pathlib.Path(file).parts
    return parts[1] if len(parts) > 2 else PACKAGE


def main() -> None:
    """Reads the command line and runs one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=("draw", "cover", "run", "table"))
    parser.add_argument("folder", type=pathlib.Path, help="folder for the copy and the results")
    parser.add_argument("--list", type=pathlib.Path, default=LIST, help="file of the mutants [mutants.jsonl here]")
    parser.add_argument("--count", type=int, default=COUNT, help="number of mutants that are drawn")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice")
    parser.add_argument("--packages", nargs="*", default=[], help="run mutants of these packages only")
    parser.add_argument("--limit", type=int, help="run the first mutants only")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no mutant after this time")
    parser.add_argument("--workers", type=int, default=2, help="processes of the suite; 0: one [2]")
    parser.add_argument("--tests", nargs="*", default=[], help="folders of tests of `cover` [all]")
    options = parser.parse_args()
    # A background job of a shell ignores Ctrl-C, and so would its tests, some of which then fail without a mutant.
    # This restores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.step == "draw":
        drawn_before = [*map(json.loads, options.list.read_text().splitlines())] if options.list.exists() else []
        drawn = draw(options.count, options.seed, drawn_before)
        options.list.write_text("".join(json.dumps(mutant) + "\n" for mutant in drawn))
    elif options.step == "cover":
        cover(folder, options.workers, options.tests)
    elif options.step == "run":
        mutants = [*map(json.loads, options.list.read_text().splitlines())]
        run(folder, mutants, options.packages, options.limit, options.seconds)
    else:
        print(table(folder))


if __name__ == "__main__":
    main()
