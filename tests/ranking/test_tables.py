import numpy as np
import pytest

from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.metrics import TIE_RULE
from endx_jax.ranking.evaluate import Evaluation
from endx_jax.ranking.results import Results, format_table


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
