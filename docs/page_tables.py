"""Reads tables of the pages, and the files in docs/tables that hold their full forms.

A page shows rows and columns of a file in a table after a line `<!-- table: NAME -->`. To print a file as a table:

python docs/page_tables.py NAME [COLUMN ...]
"""

import json
import pathlib
import re
import sys
from collections.abc import Iterator

FOLDER = pathlib.Path(__file__).parent
# Keys of every file, in its order; `notes` is optional and comes before `columns`.
KEYS = ("title", "page", "command", "seeds", "data", "machine", "versions", "origin", "columns", "rows")

Table = tuple[list[str], list[list[str]]]


def tables(text: str) -> Iterator[tuple[str, int, Table]]:
    """Yields the name in the mark above it (or ""), line number and (columns, rows) of each table of a page."""
    lines, fenced, mark, head = text.splitlines(), False, "", 0
    for number, line in enumerate(lines):
        fenced ^= line.lstrip().startswith(("```", "~~~"))
        if fenced or number < head:
            continue
        if line.startswith("<!-- table: "):
            mark = line.removeprefix("<!-- table: ").removesuffix(" -->")
        elif line.startswith("|") and re.fullmatch(r"\|[-:| ]+\|", (lines[number + 1 :] or [""])[0]):
            head = next((end for end in range(number, len(lines)) if not lines[end].startswith("|")), len(lines))
            yield mark, number + 1, (cells(line), [cells(row) for row in lines[number + 2 : head]])
            mark = ""
        elif line:
            mark = ""


def cells(line: str) -> list[str]:
    """Returns the cells of a row as plain text, without bold type and links."""
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", line.strip().removeprefix("|").removesuffix("|"))
    return [cell.strip().replace("\\|", "|").replace("**", "") for cell in re.split(r"(?<!\\)\|", plain)]


def stored(name: str) -> dict:
    """Returns a file of docs/tables."""
    return json.loads((FOLDER / "tables" / f"{name}.json").read_text())


def differences(shown: Table, full: dict) -> list[str]:
    """Returns what a page's table has that its file has not: columns, or rows in the columns that it shows."""
    columns, rows = shown
    missing = [column for column in columns if column not in full["columns"]]
    if missing:
        return [f"no column {column!r}" for column in missing]
    places = [full["columns"].index(column) for column in columns]
    known = [[row[place] for place in places] for row in full["rows"]]
    return [f"no row {row}" for row in rows if row not in known]


def markdown(full: dict, columns: list[str]) -> str:
    """Returns a file's rows as a Markdown table of these columns, or of all."""
    columns = columns or full["columns"]
    places = [full["columns"].index(column) for column in columns]
    rows = [columns, ["---"] * len(columns), *([row[place] for place in places] for row in full["rows"])]
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join(line.replace("| --- ", "|---").replace("---|---", "---|---") for line in lines)


if __name__ == "__main__":
    print(markdown(stored(sys.argv[1]), sys.argv[2:]))
