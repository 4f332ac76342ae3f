"""Reports of reproduced rows: tables in Markdown, for the terminal and as pages."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from endx_jax import json_files
from endx_jax.files import write_text
from reproduction.outcome import Outcome, t_tests
from reproduction.runs import Options
from reproduction.tables import Table


def cells(outcome: Outcome, table: Table, parts: Sequence[str]) -> list[str]:
    """Returns a row's name, seeds, and for each measure the parts `paper`, `got` and `diff`."""
    digits = 0 if table.unit == "count" else 2
    seeds = str(len(outcome.values)) if outcome.values else "quoted" if outcome.row.quoted else "-"
    found = [outcome.label, seeds]
    for n in range(len(table.measures)):
        spread = f" ±{outcome.deviations[n]:.2f}" if outcome.deviations else ""
        values = {
            "paper": f"{outcome.row.expected[n]:,.{digits}f}" if outcome.row.expected else "",
            "got": f"{outcome.means[n]:,.{digits}f}{spread}" if outcome.values else "",
            "diff": f"{outcome.differences[n]:+,.{digits}f}" if outcome.differences else "",
        }
        found += [values[part] for part in parts]
    return found


def notes(table: Table, outcomes: Sequence[Outcome]) -> list[str]:
    """Returns one line for each verdict, t-test, reason and difference of a shortened run."""
    lines = []
    judged = [outcome.holds(table) for outcome in outcomes if outcome.holds(table) is not None]
    if judged:
        bar = f"within {table.tolerance:g} of the paper" if table.tolerance else "as in the paper"
        lines.append(f"{bar} in every column: {sum(map(bool, judged))} of {len(judged)} rows")
    lines += t_tests(outcomes)
    for outcome in outcomes:
        intervals = outcome.facts.get("interval", {}).items()
        if shown := ", ".join(f"{measure} {low:+.2f} to {high:+.2f}" for measure, (low, high) in intervals):
            gain = f"{outcome.row.row} against {outcome.row.against}"
            lines.append(f"{gain}, 95 % interval: {shown}")
    said: dict[str, list[str]] = {}
    for outcome in outcomes:
        for reason in _reasons(outcome):
            said.setdefault(reason, []).append(outcome.row.row)
    lines += [f"{', '.join(rows)}: {reason}" for reason, rows in said.items()]
    return [*lines, table.note] if table.note else lines


def _reasons(outcome: Outcome) -> list[str]:
    """Returns why a row lacks values, and how its runs differ from the paper's."""
    reasons = []
    if outcome.row.quoted and not outcome.values:
        reasons.append(f"quoted, not run: {outcome.row.quoted}")
    elif outcome.why:
        state = f"{len(outcome.values)} seeds only" if outcome.values else "skipped"
        # A page is for others, whose home is elsewhere.
        reasons.append(f"{state}: {outcome.why.replace(str(pathlib.Path.home()), '~')}")
    if outcome.row.note:
        reasons.append(outcome.row.note)
    if outcome.differs and outcome.values:
        reasons.append(f"shortened: {outcome.differs}")
    return reasons


def keep(table: Table, outcomes: Sequence[Outcome], options: Options) -> pathlib.Path:
    """Writes outcomes into the table's JSON file, and all that it holds as a page in Markdown.

    Other rows stay, and a row with values stays if the new outcome has none.
    """
    file = options.output / table.name / f"{options.length}.json"
    held = json_files.read_json_file(file) if file.exists() else {}
    for outcome in outcomes:
        if outcome.values or not held.get(outcome.row.row, {}).get("values"):
            held[outcome.row.row] = {key: value for key, value in dataclasses.asdict(outcome).items() if key != "row"}
    ordered = {row.row: held[row.row] for row in table.rows if row.row in held}
    write_text(file, json.dumps(ordered, indent=1) + "\n")
    rows = [Outcome(row, **json_files.read_json_file(file)[row.row]) for row in table.rows if row.row in held]
    write_text(file.with_suffix(".md"), section(table, rows, options.budget))
    return file.with_suffix(".md")


def section(table: Table, outcomes: Sequence[Outcome], budget: float) -> str:
    """Formats a table in Markdown, with notes; skipped rows are in the notes only."""
    # Shortened runs are not compared with a paper's, and some rows have no paper.
    parts = ["paper", "got"] if budget else ["paper", "got", "diff"]
    if not any(row.expected for row in table.rows):
        parts = ["got"]
    rows = [["row", "seeds", *(f"{measure} {part}" for measure in table.measures for part in parts)]]
    rows += [cells(one, table, parts) for one in outcomes if one.values or one.row.quoted]
    rows = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    minutes = f", {budget:g} minutes" if budget else ""
    short = f" SHORTENED to {budget:g} minutes: not the paper's runs." if budget else ""
    lines = [
        f"## {table.name}{minutes}",
        "",
        f"{table.title}. {table.paper}.{short}",
        "",
        *(f"| {' | '.join(row)} |" for row in padded),
        "",
        *(f"- {note}" for note in [*notes(table, outcomes), *_made_with(outcomes)]),
        "",
        "```bash",
        f"python -m reproduction table {table.name}{f' --budget={budget:g}' if budget else ''}",
        "```",
        "",
    ]
    return "\n".join(lines)


def _made_with(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns a line for each number of steps and seeds, one with the data's hashes, and one for each machine."""
    seeds: dict[tuple[str, str], list[str]] = {}
    hashes, machines = dict[str, None](), dict[str, None]()
    for outcome in outcomes:
        for run in outcome.facts.get("runs", ()):
            length, manifest = f"{run['steps']} steps of {run['batch']} pairs", run["manifest"]
            seeds.setdefault((outcome.row.row, length), []).append(str(run["seed"]))
            hashes[f"{manifest['data_sha256'][:12]}..."] = None
            versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
            commit, devices = manifest["commit"], manifest["devices"]
            commit = commit[:7] + ("+" if commit.endswith("+") else "") if commit else "?"
            machine = f"{manifest['cores']} cores of {manifest['processor']}, {devices['count']} x {devices['kind']}"
            machines[f"commit {commit}, Python {manifest['python']}, {versions}; {machine}"] = None
    rows: dict[str, list[str]] = {}
    for (name, length), found in seeds.items():
        rows.setdefault(f"{length}; seed {', '.join(found)}", []).append(name)
    lines = [f"{', '.join(names)}: {length}" for length, names in rows.items()]
    return [*lines, f"sha256 of the training data: {', '.join(hashes)}", *machines] if lines else []
