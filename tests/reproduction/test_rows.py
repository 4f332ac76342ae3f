"""Rows that are not one training run: layers, counts, few pairs, other data and a whole collection."""

import dataclasses
import functools
import json
import shutil

import pytest
from helpers import times, written
from refusals import check_refusal
from small_records import records_of
from small_squad import write_words

from reproduction import rows
from reproduction.counts import of_few_paragraphs
from reproduction.outcome import Outcome
from reproduction.runs import Options
from reproduction.tables import papers


def test_layers_are_reported_once_and_taken_by_every_row(squad, tmp_path):
    vectors = write_words(squad / "words.txt")
    options = Options(tmp_path, data={"squad": str(squad)}, weights={"glove.840B.300d": str(vectors)})
    plain = rows.layers(papers().row("rr-table3/GloVe"), options)
    (file,) = before = times(tmp_path / "layers")
    weighted = rows.layers(papers().row("rr-table4/GloVe with IDF"), options)
    assert times(tmp_path / "layers") == before  # the second row finds what the first has left
    for other in ((str(vectors), "other"), ("other/words.txt", str(squad))):
        refused = functools.partial(rows.measure_layers, *other, file.parent)
        check_refusal(refused, str(vectors), str(squad), "another --output")
    found = json.loads(file.read_text())
    assert found["layers"] == ["token table"]
    assert found["sets"]["test"] == {"questions": 80, "candidates": 40, "right": 80}
    without, idf = (found["systems"][name]["test"] for name in ("token table", "token table + idf"))
    assert (plain.values[0][0], weighted.values[0][0]) == tuple(100 * s["metrics"]["recall@1"] for s in (without, idf))
    assert weighted.runs[0].endswith("#token table + idf")
    assert idf["metrics"]["recall@1"] > without["metrics"]["recall@1"] + 0.2
    assert idf["metrics"]["ap"] > without["metrics"]["ap"]
    assert idf["curve"]["recall"] == sorted(idf["curve"]["recall"])
    assert idf["curve"]["recall"][-1] == 1


def test_data_are_counted_as_the_papers_count(squad, tmp_path):
    options = Options(tmp_path, data={"squad": str(squad)})
    # An article has a paragraph, two questions, and two sentences that answer one.
    counted = rows.counts(papers().row("endx-table1/SQuAD"), options)
    assert counted.values == ((60.0, 60.0, 60.0, 80.0, 80.0),)
    assert counted.differences[0] == 60 - 87355
    assert rows.counts(papers().row("rr-table1/Train"), options).values == ((60.0, 30.0),)
    assert rows.outcome_of(papers().row("endx-table1/NQ"), options).why.startswith("reqa/nq is not prepared")


def test_few_paragraphs_takes_a_question_of_each_paragraph_in_turn():
    # Paragraph 0 has three questions, paragraph 1 two, paragraph 2 one; each question has the one sentence `sP.Q`.
    names = ("s0.0", "s0.1", "s0.2", "s1.0", "s1.1", "s2.0")
    records = dataclasses.replace(records_of([(n,) for n in range(6)], names), candidate_ids=names)
    assert of_few_paragraphs(records, paragraphs=2, pairs=3).candidates == ("s0.0", "s1.0", "s0.1")


@pytest.fixture
def workdir(trained_workdir, tmp_path, monkeypatch):
    """The workdir of a run, which stands for the run of every row."""
    workdir = shutil.copytree(trained_workdir, tmp_path / "run")
    monkeypatch.setattr(rows, "trained", lambda row, options, read: read(workdir, row))
    return workdir


def once(workdir, function, *arguments) -> tuple[float, ...]:
    """Calls a function twice, which writes its results into the workdir the first time only; returns them."""
    first, before = function(*arguments), times(workdir)
    assert (function(*arguments), times(workdir)) == (first, before)
    return first


def test_a_run_ranks_the_few_once(workdir, squad, tmp_path):
    config = json.loads((workdir / "config.json").read_text())
    config["data"] |= {"path": str(squad), "pool": "answers"}
    (workdir / "config.json").write_text(json.dumps(config))
    first = once(workdir, rows.few, papers().row("endx-table6/Dual-BERTs"), Options(tmp_path))
    assert len(first) == 3
    assert 0 < first[0] <= 100


def test_a_run_is_ranked_once_on_data_that_it_has_not_seen(workdir, squad, tmp_path):
    row = papers().row("endx-study-dev/GRU/ENDX")
    first = once(workdir, rows.evaluated, row, Options(tmp_path, data={"squad": str(squad)}))
    found = json.loads((workdir / "evaluation" / "squad" / "results.json").read_text())["evaluations"]
    assert [(entry["pool"], entry["questions"]) for entry in found] == [("answers", 80)] * 2  # BM25 and the run
    assert first == tuple(100 * found[1]["metrics"][name] for name in row.measures)
    outcome = Outcome(row, (first,) * 2, runs=(str(workdir),) * 2)
    assert rows.interval(outcome, outcome) == dict.fromkeys(row.measures, (0.0, 0.0))


def test_a_collection_is_encoded_once_and_answers_are_looked_for(workdir, tmp_path):
    passages = ["the mats of 0", "the mat of 1", "nothing here"]
    corpus = written(tmp_path / "passages.jsonl", [{"id": str(n), "text": text} for n, text in enumerate(passages)])
    questions = [{"question": "where is the cat 0", "answer": ["mats"]}, {"question": "where?", "answer": ["the sea"]}]
    asked = written(tmp_path / "asked.jsonl", questions)
    options = Options(tmp_path, data={"dpr-wikipedia": str(corpus), "dpr-nq-questions": str(asked)})
    # One of two questions, among the best five of three.
    row = papers().row("dong-table4/small/SDE")
    assert once(workdir, rows.collection, row, options) == (50.0, 50.0, 50.0)


@pytest.mark.parametrize(("seeds", "expected"), [(2, {}), (3, {"interval": {"mrr": (0.0, 1.0)}})])
def test_intervals_need_three_seeds(seeds, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "outcome_of", lambda row, options: Outcome(row, ((1.0, 2.0, 3.0),) * seeds))
    monkeypatch.setattr(rows, "interval", lambda outcome, other: {"mrr": (0.0, 1.0)})
    chosen = papers().tables["endx-table2"].chosen(["Dual-GRUs", "ENDX-GRUs"])
    dual, endx = rows.reproduce(chosen, Options(tmp_path))
    assert (dual.facts, endx.facts) == ({}, expected)
