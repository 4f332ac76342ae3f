"""Tables of the papers as data: the recipe, data and expected values of each row."""

import dataclasses
import functools
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

from endx_jax.settings import check_choice

FILE = pathlib.Path(__file__).with_name("papers.toml")


@dataclasses.dataclass(frozen=True)
class Row:
    """Row of a table such as `endx-table2`; `papers.toml` explains the fields."""

    table: str
    row: str
    measures: tuple[str, ...]
    expected: tuple[float, ...] = ()
    kind: str = ""
    quoted: str = ""
    recipe: str = ""
    set: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: str = ""
    pool: str = ""
    system: str = "trained"
    direction: str = "question_to_answer"
    of: str = ""
    after: Mapping[str, str] = dataclasses.field(default_factory=dict)
    against: str = ""
    short: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: str = ""
    part: str = ""
    split: str = ""
    collection: str = ""
    questions: str = ""
    note: str = ""
    seeds: int = 1

    @property
    def name(self) -> str:
        """Full name of the row, `TABLE/ROW`."""
        return f"{self.table}/{self.row}"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of a paper, with its rows in the paper's order; `papers.toml` explains the fields."""

    name: str
    title: str
    paper: str
    rows: tuple[Row, ...]
    measures: tuple[str, ...]
    unit: str = "points"
    tolerance: float = 1.0
    minutes: float = 60.0
    note: str = ""

    def chosen(self, names: list[str]) -> list[Row]:
        """Returns the named rows in table order, or all rows if no name is given.

        Raises:
          EndxError: there is no such row.
        """
        for name in names:
            check_choice(f"a row of {self.name}", name, [row.row for row in self.rows])
        return [row for row in self.rows if not names or row.row in names]


@dataclasses.dataclass(frozen=True)
class PaperFigure:
    """Figure of a paper, and the rows whose runs it shows; `note` is a remark for readers."""

    name: str
    title: str
    paper: str
    runs: tuple[str, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Papers:
    """Contents of `papers.toml`: data, settings and forms of shortened runs, tables and figures, by name."""

    data: Mapping[str, Mapping[str, str]]
    shorter: Mapping[str, Any]
    forms: Mapping[str, Mapping[str, Any]]
    tables: Mapping[str, Table]
    figures: Mapping[str, PaperFigure]

    def row(self, name: str) -> Row:
        """Returns the row with the full name `TABLE/ROW`."""
        table, _, row = name.partition("/")
        return self.tables[table].chosen([row])[0]


@functools.cache
def papers() -> Papers:
    """Reads `papers.toml`."""
    tree = tomllib.loads(FILE.read_text(encoding="utf-8"))
    tables = {name: _table(name, table, tree["tables"]) for name, table in tree["tables"].items()}
    figures = {name: PaperFigure(name, **figure) for name, figure in tree["figures"].items()}
    return Papers(tree["data"], tree["shorter"], tree["forms"], tables, figures)


def _table(name: str, tree: Mapping[str, Any], tables: Mapping[str, Any]) -> Table:
    """Builds a table; its entries are defaults of its rows."""
    own = {field.name for field in dataclasses.fields(Table)}
    special = own | {"rows_of", "without", "vary"}
    shared = {key: value for key, value in tree.items() if key not in special} | {"measures": tuple(tree["measures"])}
    found = tree["rows"] if "rows" in tree else _rows_of(tree, tables[tree["rows_of"]])
    rows = []
    for row in found:
        changed = shared.get("set", {}) | row.get("set", {})
        rows.append(Row(name, **{**shared, **row, "set": changed, "expected": tuple(row.get("expected", ()))}))
    entries = {key: tree[key] for key in own & tree.keys()}
    return Table(name, **{**entries, "rows": tuple(rows), "measures": shared["measures"]})


def _rows_of(tree: Mapping[str, Any], other: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of another table: their runs, or with `vary` runs of their own for each value of a setting."""
    rows = [row for row in other["rows"] if row["row"] not in tree.get("without", ())]
    if "vary" not in tree:
        taken = ("row", "expected", "against")
        return [
            {key: row[key] for key in taken if key in row} | {"of": f"{tree['rows_of']}/{row['row']}"} for row in rows
        ]
    settings = [(key, value) for key, values in tree["vary"].items() for value in values]
    return [
        {key: value for key, value in row.items() if key != "against"}
        | {"row": f"{row['row']}, {key}={value}", "set": other.get("set", {}) | row.get("set", {}) | {key: value}}
        for row in rows
        for key, value in settings
    ]
