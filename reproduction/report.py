"""Reports of reproduced rows: a table for the terminal and a page in Markdown."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

from endx_jax import json_files
from endx_jax.files import write_text
from endx_jax.retrieval.tables import aligned
from reproduction.outcome import Outcome, t_tests
from reproduction.runs import Options
from reproduction.tables import Row, Table, papers


def text(table: Table, outcomes: Sequence[Outcome], budget: float) -> str:
    """Formats a table and its notes for the terminal."""
    rows = [headings(table, budget), *(cells(outcome, table, budget) for outcome in outcomes)]
    head = f"{table.name}: {table.title}. {table.paper}.{shortened(budget)}"
    return "\n".join([head, "", *aligned(rows), "", *notes(table, outcomes)])


def headings(table: Table, budget: float) -> list[str]:
    """Returns the names of the columns of `cells`."""
    return ["row", "seeds", *(f"{measure} {part}" for measure in table.measures for part in parts(table, budget))]


def parts(table: Table, budget: float) -> list[str]:
    """Returns the columns of a measure; shortened runs are not compared with a paper's, and some rows have no paper."""
    if not any(row.expected for row in table.rows):
        return ["got"]
    return ["paper", "got"] if budget else ["paper", "got", "diff"]


def shortened(budget: float) -> str:
    """Returns the part of a heading that marks shortened runs."""
    return f" SHORTENED to {budget:g} minutes: not the paper's runs." if budget else ""


def notes(table: Table, outcomes: Sequence[Outcome]) -> list[str]:
    """Returns one line for each verdict, t-test, reason and difference of a shortened run."""
    lines = []
    judged = [outcome for outcome in outcomes if outcome.holds(table) is not None]
    if judged:
        held = sum(outcome.holds(table) is True for outcome in judged)
        bar = f"within {table.tolerance:g} of the paper" if table.tolerance else "as in the paper"
        lines.append(f"{bar} in every column: {held} of {len(judged)} rows")
    tests = t_tests(outcomes)
    for test in tests:
        results = zip(table.measures, test.gains, test.p, test.adjusted, strict=True)
        shown = ", ".join(
            f"{measure} {gain:+.2f}, p = {p:.3g}" + (f" (Holm {adjusted:.3g})" if len(tests) > 1 else "")
            for measure, gain, p, adjusted in results
        )
        name = "paired" if test.paired else "Welch's"
        lines.append(f"{test.row} against {test.against}, {name} t-test over seeds: {shown}")
    for outcome in outcomes:
        if intervals := outcome.facts.get("over_questions"):
            shown = ", ".join(f"{measure} {low:+.2f} to {high:+.2f}" for measure, (low, high) in intervals.items())
            lines.append(f"{outcome.row.row} against {outcome.row.against}, 95 % interval over questions: {shown}")
    said: dict[str, list[str]] = {}
    for outcome in outcomes:
        for reason in _reasons(outcome):
            said.setdefault(reason, []).append(outcome.row.row)
    lines += [f"{', '.join(rows)}: {reason}" for reason, rows in said.items()]
    if table.note:
        lines.append(table.note)
    return lines


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


def cells(outcome: Outcome, table: Table, budget: float) -> list[str]:
    """Returns a row's name, seeds, and for each measure the values of `parts`."""
    columns = parts(table, budget)
    found = [name_of(outcome), str(len(outcome.values)) if outcome.values else "quoted" if outcome.row.quoted else "-"]
    for n in range(len(table.measures)):
        spread = f" ±{outcome.deviations[n]:.2f}" if outcome.deviations else ""
        values = {
            "paper": _number(outcome.row.expected[n], table) if outcome.row.expected else "",
            "got": f"{_number(outcome.means[n], table)}{spread}" if outcome.values else "",
            "diff": f"{outcome.differences[n]:+,.{_digits(table)}f}" if outcome.differences else "",
        }
        found += [values[part] for part in columns]
    return found


def name_of(outcome: Outcome) -> str:
    """Returns the name of a row, and for a shortened one the name of what was run in its place, if it has one."""
    ran = outcome.row.short.get("name", "") if outcome.differs else ""
    return f"{outcome.row.row}: {ran}" if ran else outcome.row.row


def _number(value: float, table: Table) -> str:
    """Formats a number in the table's unit."""
    return f"{value:,.{_digits(table)}f}"


def _digits(table: Table) -> int:
    return 0 if table.unit == "count" else 2


HEAD = """# Reproduction

Each table compares values computed by this library (got) with those of a paper's table. This page is generated by
`endx papers reproduce --page={page}` from the results in its output folder; rows of tables that are missing were not
computed. Values are per cent unless a table says otherwise; means over seeds have standard deviations.
"""


def keep(table: Table, outcomes: Sequence[Outcome], options: Options) -> None:
    """Writes outcomes into the table's JSON file; other rows in it stay."""
    file = _file(table, options.output, options.length)
    held = json_files.read(file)["rows"] if file.exists() else {}
    for outcome in outcomes:
        held[outcome.row.row] = {name: value for name, value in dataclasses.asdict(outcome).items() if name != "row"}
    ordered = {row.row: held[row.row] for row in table.rows if row.row in held}
    write_text(file, json.dumps({"budget": options.budget, "rows": ordered}, indent=1) + "\n")


def write_page(page: pathlib.Path, output: pathlib.Path) -> None:
    """Writes a page of all outcomes in a folder."""
    parts = [HEAD.format(page=page.name)]
    machines: dict[str, None] = {}
    for table in papers().tables.values():
        for file in sorted((output / table.name).glob("*.json")):
            held = json_files.read(file)
            outcomes = [_outcome(row, held["rows"][row.row]) for row in table.rows if row.row in held["rows"]]
            parts.append(section(table, outcomes, held["budget"]))
            machines |= dict.fromkeys(_machine(run["manifest"]) for outcome in outcomes for run in _runs(outcome))
    if machines:
        parts.append("\n".join(["## Versions and hardware", "", *(f"- {machine}" for machine in machines), ""]))
    write_text(page, "\n".join(parts))


def section(table: Table, outcomes: Sequence[Outcome], budget: float) -> str:
    """Formats a table in Markdown, with notes; skipped rows are in the notes only."""
    lines = [
        f"## {table.name}{f', {budget:g} minutes' if budget else ''}",
        "",
        f"{table.title}. {table.paper}.{shortened(budget)}",
        "",
        _line(headings(table, budget)),
        _line(["---"] * len(headings(table, budget))),
        *(_line(cells(outcome, table, budget)) for outcome in outcomes if outcome.values or outcome.row.quoted),
        "",
        *(f"- {note}" for note in [*notes(table, outcomes), *made_with(outcomes)]),
        "",
        "```bash",
        f"endx papers reproduce {table.name}{f' --budget={budget:g}' if budget else ''}",
        "```",
        "",
    ]
    return "\n".join(lines)


def made_with(outcomes: Sequence[Outcome]) -> list[str]:
    """Returns a line for each number of steps and seeds, and one with the commits and data hashes."""
    runs = [(outcome.row.row, run) for outcome in outcomes for run in _runs(outcome)]
    if not runs:
        return []
    seeds: dict[tuple[str, str], list[str]] = {}
    for name, run in runs:
        seeds.setdefault((name, f"{run['steps']} steps of {run['batch']} pairs"), []).append(str(run["seed"]))
    rows: dict[str, list[str]] = {}
    for (name, length), found in seeds.items():
        rows.setdefault(f"{length}; seed {', '.join(found)}", []).append(name)
    lines = [f"{', '.join(names)}: {length}" for length, names in rows.items()]
    commits = dict.fromkeys(_commit(run["manifest"]) for _, run in runs)
    hashes = dict.fromkeys(run["manifest"]["data_sha256"][:12] for _, run in runs)
    hashed = ", ".join(f"{h}..." for h in hashes)
    return [*lines, f"commit {', '.join(commits)}; sha256 of the training data: {hashed}"]


def _runs(outcome: Outcome) -> Sequence[Mapping]:
    return outcome.facts.get("runs", ())


def _commit(manifest: Mapping) -> str:
    commit = manifest["commit"]
    return commit[:7] + ("+" if commit.endswith("+") else "") if commit else "?"


def _machine(manifest: Mapping) -> str:
    devices = manifest["devices"]
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    return (
        f"commit {_commit(manifest)}, Python {manifest['python']}, {versions}; "
        f"{manifest['cores']} cores of {manifest['processor']}, {devices['count']} x {devices['kind']}"
    )


def _outcome(row: Row, held: Mapping) -> Outcome:
    return Outcome(row, **{**held, "values": tuple(map(tuple, held["values"])), "runs": tuple(held["runs"])})


def _file(table: Table, output: pathlib.Path, length: str) -> pathlib.Path:
    return output / table.name / f"{length}.json"


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
