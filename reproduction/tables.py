"""Tables of the papers as data: the recipe, data and expected values of each row."""

import dataclasses
import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from typing import Any

from endx_jax.settings import check_choice

FILE = "papers.toml"


@dataclasses.dataclass(frozen=True)
class Form:
    """Shortened run.

    Attributes:
      recipe: recipe of the package, with its arguments.
      data: name of its data in `Papers.data`.
      steps: with a budget of the table's `minutes`.
      set: changed settings of the recipe, by dotted name.
      differs: description of the differences from the paper's rows.
    """

    recipe: str
    data: str
    steps: int
    set: Mapping[str, Any]
    differs: str


@dataclasses.dataclass(frozen=True)
class Row:
    """Row of a paper's table; `papers.toml` explains the fields.

    Attributes:
      table: name of its table, such as `endx-table2`.
      row: name of the row.
      expected: the paper's values in the order of `measures`; empty for rows that are ours.
    """

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
    """A table of a paper.

    Attributes:
      name: such as `endx-table2`.
      title: description.
      paper: paper and number of the table.
      rows: rows in the paper's order.
      measures: its columns, by their names in results.json.
      unit: `points`, of a hundred, or `count`.
      tolerance: allowed difference from the paper's value, in the unit.
      minutes: the budget for which the steps of its forms are given.
      note: remark for readers.
    """

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
    """Figure of a paper: its kind in `endx papers figures`, and the rows whose runs it shows."""

    name: str
    title: str
    paper: str
    figure: str
    runs: tuple[str, ...]
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Papers:
    """Contents of `papers.toml`.

    Attributes:
      data: by name, the default `path`, and the name in `--data NAME=PATH`, `given`.
      shorter: settings of every shortened run, by dotted name.
      forms: forms of shortened runs, by name.
      tables: tables by name.
      figures: figures by name.
    """

    data: Mapping[str, Mapping[str, str]]
    shorter: Mapping[str, Any]
    forms: Mapping[str, Form]
    tables: Mapping[str, Table]
    figures: Mapping[str, PaperFigure]

    def row(self, name: str) -> Row:
        """Returns the row with the full name `TABLE/ROW`."""
        table, _, row = name.partition("/")
        return self.tables[table].chosen([row])[0]


@functools.cache
def papers() -> Papers:
    """Reads the package's own `papers.toml`."""
    file = importlib.resources.files(__package__) / FILE
    tree = tomllib.loads(file.read_text(encoding="utf-8"))
    return Papers(
        data=tree["data"],
        shorter=tree["shorter"],
        forms={name: Form(**form) for name, form in tree["forms"].items()},
        tables={name: _table(name, table, tree["tables"]) for name, table in tree["tables"].items()},
        figures={
            name: PaperFigure(name, **{**figure, "runs": tuple(figure["runs"])})
            for name, figure in tree["figures"].items()
        },
    )


def _table(name: str, tree: Mapping[str, Any], tables: Mapping[str, Any]) -> Table:
    """Builds a table; its entries are defaults of its rows."""
    own = {field.name for field in dataclasses.fields(Table)}
    special = own | {"rows_of", "without", "vary"}
    shared = {key: value for key, value in tree.items() if key not in special} | {"measures": tuple(tree["measures"])}
    found = tree["rows"] if "rows" in tree else _rows_of(tree, tables[tree["rows_of"]])
    rows = tuple(_row(name, shared | row | {"set": shared.get("set", {}) | row.get("set", {})}) for row in found)
    return Table(name, **{key: tree[key] for key in own & tree.keys()} | {"rows": rows, "measures": shared["measures"]})


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


def _row(table: str, tree: Mapping[str, Any]) -> Row:
    return Row(table, **{**tree, "expected": tuple(tree["expected"])})
