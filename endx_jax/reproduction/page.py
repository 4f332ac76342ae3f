"""The page of results: what was reproduced, in Markdown, from the JSON that `endx reproduce` keeps."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

from endx_jax.files import write_text
from endx_jax.reproduction import report
from endx_jax.reproduction.outcome import Outcome
from endx_jax.reproduction.plan import Options
from endx_jax.reproduction.table import Row, Table, papers

HEAD = """# Reproduction

What this library computed for the rows of the papers' tables, beside what the papers have. This page is generated:
`endx reproduce --page={page}` writes it from the JSON of the runs in a folder, and a number that is not there was
not computed. Figures are per cent unless a table says otherwise; a mean over seeds has its standard deviation.
"""


def keep(table: Table, outcomes: Sequence[Outcome], options: Options) -> None:
    """Adds outcomes to the table's JSON of this length: those of other rows stay."""
    file = _file(table, options.output, options.length)
    held = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else {}
    for outcome in outcomes:
        held[outcome.row.row] = {
            name: value for name, value in dataclasses.asdict(outcome).items() if name not in ("row",)
        }
    ordered = {row.row: held[row.row] for row in table.rows if row.row in held}
    write_text(file, json.dumps({"budget": options.budget, "rows": ordered}, indent=1) + "\n")


def write(page: pathlib.Path, output: pathlib.Path) -> None:
    """Writes the page of everything that was kept in a folder."""
    parts = [HEAD.format(page=page.name)]
    for table in papers().tables.values():
        for file in sorted((output / table.name).glob("*.json")):
            held = json.loads(file.read_text(encoding="utf-8"))
            outcomes = [_outcome(row, held["rows"][row.row]) for row in table.rows if row.row in held["rows"]]
            parts.append(section(table, outcomes, held["budget"]))
    write_text(page, "\n".join(parts))


def section(table: Table, outcomes: Sequence[Outcome], budget: float) -> str:
    """A table in Markdown, its notes, and what its runs were made with."""
    measures = [f"{measure} {part}" for measure in table.measures for part in ("paper", "got", "diff")]
    lines = [
        f"## {table.name}{f', {budget:g} minutes' if budget else ''}",
        "",
        f"{table.title}. {table.paper}.{report.shortened(budget)}",
        "",
        _line(["row", "seeds", *measures]),
        _line(["---"] * (2 + len(measures))),
        *(_line(report.cells(outcome, table)) for outcome in outcomes),
        "",
        *(f"- {note}" for note in [*report.notes(table, outcomes), *made_with(outcomes)]),
        "",
        "```bash",
        f"endx reproduce {table.name}{f' --budget={budget:g}' if budget else ''}",
        "```",
        "",
    ]
    return "\n".join(lines)


def made_with(outcomes: Sequence[Outcome]) -> list[str]:
    """Steps and seeds of each row; hardware, versions and hashes of data, each once."""
    runs = [(outcome.row.row, run) for outcome in outcomes for run in outcome.facts.get("runs", ())]
    if not runs:
        return []
    seeds: dict[tuple[str, str], list[str]] = {}
    for name, run in runs:
        seeds.setdefault((name, f"{run['steps']} steps of {run['batch']} pairs"), []).append(str(run["seed"]))
    lines = [f"{name}: {length}; seed {', '.join(found)}" for (name, length), found in seeds.items()]
    machines = dict.fromkeys(_machine(run["manifest"]) for _, run in runs)
    hashes = dict.fromkeys(run["manifest"]["data_sha256"][:12] for _, run in runs)
    return [*lines, *machines, f"sha256 of the training data: {', '.join(f'{h}...' for h in hashes)}"]


def _machine(manifest: Mapping) -> str:
    devices = manifest["devices"]
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    commit = manifest["commit"][:7] + ("+" if manifest["commit"].endswith("+") else "") if manifest["commit"] else "?"
    return (
        f"commit {commit}, Python {manifest['python']}, {versions}; "
        f"{manifest['cores']} cores of {manifest['processor']}, {devices['count']} x {devices['kind']}"
    )


def _outcome(row: Row, held: Mapping) -> Outcome:
    return Outcome(row, **{**held, "values": tuple(map(tuple, held["values"])), "runs": tuple(held["runs"])})


def _file(table: Table, output: pathlib.Path, length: str) -> pathlib.Path:
    return output / table.name / f"{length}.json"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
