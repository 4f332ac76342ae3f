"""`endx papers reproduce` on the command line: the list, refusals, and rows that need nothing."""

import json
import subprocess
import sys

from small_squad import write_squad


def test_without_a_table_all_are_listed(reproduce):
    listed = reproduce("table").out.splitlines()
    assert any(line.startswith("endx-table2 ") for line in listed)
    assert any(line.startswith("dong-figure2 ") for line in listed)


def test_a_reader_that_has_seen_enough_is_no_traceback():
    code = "import sys; from reproduction.__main__ import run; sys.exit(run(['table']))"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_refusals_are_one_line(reproduce):
    for argv, expected in (
        (["endx-tabel2"], "did you mean"),
        (["endx-table2", "GRU"], "a row of endx-table2 is 'GRU', which is none of"),
        (["endx-table2", "--data=squod=x"], "NAME of --data=NAME=PLACE is 'squod', which is none of"),
        (["endx-table2", "--data=squad"], "give NAME=PLACE"),
        (["endx-table2", "--budget=-1"], "must not be negative"),
    ):
        assert expected in reproduce("table", *argv, status=2).err


def test_bm25_is_ranked_quoted_rows_stay_quoted_and_a_page_is_written(tmp_path, reproduce):
    folder, out = write_squad(tmp_path / "squad"), tmp_path / "out"
    argv = ["endx-table2", "BM25", "USE-QA", f"--data=squad={folder}", f"--output={out}"]
    shown = reproduce("table", *argv, f"--page={tmp_path / 'page.md'}").out
    assert "USE-QA: quoted, not run" in shown
    held = json.loads((out / "endx-table2" / "full.json").read_text())["rows"]
    assert held["USE-QA"]["values"] == []
    (values,) = held["BM25"]["values"]
    assert all(0 < value <= 100 for value in values)
    assert f"| BM25 | 1 | 52.96 | {values[0]:.2f} |" in (tmp_path / "page.md").read_text()
