import numpy as np
import pytest

from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.metrics import TIE_RULE
from endx_jax.metrics.significance import FEWEST, bootstrap_interval
from endx_jax.ranking.evaluate import Evaluation
from endx_jax.ranking.results import Results, SuiteResults, format_table


def test_layout_best_values_and_the_rule_for_ties():
    rows = {"bm25": {"mrr": 0.7606, "hit@1": 0.69}, "untrained": {"mrr": 0.7254}, "own": {"mrr": 0.7606, "hit@1": 0.5}}
    table, note = format_table(rows, ["mrr", "hit@1"]).split("\n* ")
    head, *rows = table.splitlines()
    assert head == "system       mrr   hit@1"
    assert rows == ["bm25       0.761*  0.690*", "untrained  0.725       -", "own        0.761*  0.500"]
    assert note.replace("\n", " ") == f"best of its column. {TIE_RULE}"


@pytest.mark.parametrize(
    ("measured", "telling"),
    [
        ({"bm25": 0.5, "untrained": 1.0, "trained": 1.0, "hybrid": 1.0}, False),
        ({"untrained": 0.5, "trained": 0.5}, False),
        ({"trained": 1.0}, False),
        ({"trained": 0.5}, True),
        ({"bm25": 1.0, "untrained": 1.0, "trained": 0.5}, True),
    ],
)
def test_a_line_says_when_questions_tell_systems_not_apart(measured, telling):
    records = RetrievalSet.from_pairs([(f"q{n}", f"a{n}") for n in range(27)])
    results = Results("data", "test", Pools(all=records))
    for name, mrr in measured.items():
        values = {"mrr": np.full(27, mrr, np.float32)}
        results.add(name, {"all": Evaluation(values, *np.zeros((3, 27, 1)), 27)})
    assert ("27 questions over 27 candidates are too few to judge" not in results.tables()) == telling
    results.split = ""  # all questions, as in `endx check`: no share of them is held out
    assert "data.test_fraction" not in results.tables()


def test_intervals_and_notes_of_a_suite():
    parts = [np.random.default_rng(0).random((count, 1), np.float32) for count in (FEWEST, 3)]
    suite = SuiteResults("suite", "test")
    for name, part in zip("ab", parts, strict=True):
        results = Results(name, "test", Pools(all=RetrievalSet((), (), (), (), ())), notes=["a note", name])
        results.add("bm25", {"all": Evaluation({"mrr": part[:, 0]}, np.ones(part.shape), *np.zeros((2, 1, 1)), 9)})
        suite.add(name, results)
    assert suite.notes == ["a note", "a", "b"]
    of_mean = bootstrap_interval(np.concatenate(parts), sizes=(FEWEST, 3))
    found = {"a": bootstrap_interval(parts[0]), "mean": of_mean}
    expected = {name: {"bm25": {"mrr": tuple(ends[:, 0])}} for name, ends in found.items()}
    assert suite.intervals == expected | {"b": {}}
