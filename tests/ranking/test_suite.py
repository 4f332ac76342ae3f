"""Results over the sets of a suite; `tests/cli/test_evaluate.py` has those of a real model."""

import numpy as np

from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.metrics.significance import FEWEST, bootstrap_interval
from endx_jax.ranking.evaluate import Evaluation
from endx_jax.ranking.results import Results, SuiteResults


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
