"""The command line: refusals, rows that need nothing, and the layers of a model."""

import json
import re

import pytest
from helpers import raising
from small_squad import write_squad
from tiny_bert import write_tiny_bert

from reproduction import cost


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["table", "endx-tabel2"], "did you mean"),
        (["table", "endx-table2", "GRU"], "a row of endx-table2 is 'GRU', which is none of"),
        (["table", "endx-table2", "--data=squod=x"], "NAME of --data=NAME=PLACE is 'squod', which is none of"),
        (["table", "endx-table2", "--data=squad"], "give NAME=PLACE"),
        (["table", "endx-table2", "--budget=-1"], "must not be negative"),
        (["table", "endx-table2", "--output=gs://bucket/x"], "gs://bucket/x is in a bucket: name a local folder"),
        (["figure", "dong-figure5"], "did you mean"),
        (["figure", "dong-figure4", "--run=nowhere"], "--run=nowhere must be NAME=WORKDIR"),
        (["figure", "dong-figure4", "--run=a=nowhere"], "a: nowhere is no workdir of a run"),
        (["layers", "--model=none", "--data=none", "--output={folder}"], "none"),
        (["table", "public"], "needs --data public=PATH"),
        (["table", "public", "--data=public={pairs}"], "give a folder of BEIR folders"),
        (["table", "public", "--data=public={folder}", "--budget=3"], "public has no --seeds and no --budget"),
    ],
)
def test_refusals_are_one_line(argv, expected, reproduce, tmp_path, pairs_csv):
    argv = [argument.format(folder=tmp_path, pairs=pairs_csv) for argument in argv]
    assert expected in reproduce(*argv, status=2).err


def test_a_task_without_memory_ends_with_one_line(reproduce, monkeypatch):
    monkeypatch.setattr(cost, "text", raising(MemoryError()))
    assert reproduce("cost", "endx-table2", status=2).err.startswith("reproduction: out of memory: ")


def test_bm25_is_ranked_quoted_rows_stay_quoted_and_a_page_is_written(tmp_path, reproduce, monkeypatch):
    folder, out = write_squad(tmp_path / "squad"), tmp_path / "out"
    monkeypatch.setenv("HOME", str(tmp_path))
    argv = ["endx-table2", "BM25", "USE-QA", f"--data=squad={folder}", "--output=~/out"]
    shown = reproduce("table", *argv).out
    assert "USE-QA: quoted, not run" in shown
    held = json.loads((out / "endx-table2" / "full.json").read_text())
    assert held["USE-QA"]["values"] == []
    (values,) = held["BM25"]["values"]
    assert all(0 < value <= 100 for value in values)
    assert f"| BM25 | 1 | 52.96 | {values[0]:.2f} |" in re.sub(" +", " ", shown)
    assert shown.startswith(f"\n{(out / 'endx-table2' / 'full.md').read_text()}")


@pytest.mark.slow
def test_a_models_layers_and_their_mean(squad, tmp_path, reproduce):
    bert = write_tiny_bert(tmp_path / "bert", num_hidden_layers=2)
    shown = reproduce("layers", f"--model={bert}", f"--data={squad}", f"--output={tmp_path}").out
    assert "test: 80 questions, 40 candidates" in shown
    systems = json.loads((tmp_path / "layers.json").read_text())["systems"]
    names = ["token table", "encoder input", "layer 1", "layer 2", "mean of layers"]
    assert list(systems) == [*names, *(f"{name} + idf" for name in names)]
    assert len({json.dumps(system) for system in systems.values()}) > 6
