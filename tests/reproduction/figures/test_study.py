import numpy as np
import pytest
from helpers import one_line_error

from reproduction.figures import Source, Study


@pytest.mark.parametrize(
    ("text", "name", "place"),
    [("dual=runs/d", "dual", "runs/d"), ("runs/dual", "dual", "runs/dual"), ("BM25=bm25", "BM25", "bm25")],
)
def test_sources_are_named(text, name, place):
    assert Source.parse(text) == Source(name, place)


def test_models_and_texts_are_required():
    with one_line_error("at least one --run"):
        Study([])
    with one_line_error("give --data"):
        _ = Study([Source("BM25", "bm25")]).records


def test_a_run_is_shown_on_its_own_test_split_and_encoded_once(trained_workdir, tmp_path, monkeypatch):
    source = Source("run", str(trained_workdir))
    study = Study([source, Source("BM25", "bm25")], tmp_path / "kept")
    records = study.records
    assert len(records.questions) > 5
    first = study.embed(source, "question", records.questions)
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)
    again = Study([source], tmp_path / "kept")
    monkeypatch.setattr(type(again.model(source).encoder), "__call__", None)  # would fail if it were asked
    np.testing.assert_array_equal(again.embed(source, "question", records.questions), first)


def test_scores_are_of_the_part_that_is_asked_for(trained_workdir):
    source = Source("run", str(trained_workdir))
    study = Study([source, Source("BM25", "bm25")])
    records, rows = study.records, [3, 0]
    part = records.subset(rows)
    columns = [records.candidates.index(text) for text in part.candidates]
    q, a = (study.embed(source, s, t) for s, t in (("question", records.questions), ("answer", records.candidates)))
    np.testing.assert_allclose(study.scores(source, part)(0, 2), q[rows] @ a[columns].T, atol=1e-6)
    assert study.scores(study.sources[1], part)(1, 2).shape == (1, len(columns))
