"""Our measures against ir-measures, on files as runs write them; docs/evaluation.md says where the two differ."""

import collections
import json

import numpy as np
import pytest

from endx_jax.retrieval.evaluate import evaluate
from endx_jax.retrieval.trec import write_per_question, write_qrels, write_run

QUESTIONS, CANDIDATES = 16, 40
# Three right candidates for every other question, one for the rest.
DRAW = np.random.default_rng(0)
QRELS = [sorted(DRAW.choice(CANDIDATES, 1 + 2 * (n % 2), replace=False).tolist()) for n in range(QUESTIONS)]
DISTINCT = DRAW.permuted(np.tile(np.arange(CANDIDATES), (QUESTIONS, 1)), axis=1).astype(np.float32)


def right(question):
    return np.isin(np.arange(CANDIDATES), QRELS[question])


# Ties among wrong candidates and ties among right ones, and none between the two.
HARMLESS = np.stack([scores // 4 * 2 + right(n) for n, scores in enumerate(DISTINCT)]).astype(np.float32)


@pytest.fixture(scope="module")
def reference():
    return pytest.importorskip("ir_measures", reason="pip install endx_jax[reference]")


@pytest.fixture
def both(reference, tmp_path):
    """Our values and theirs, by question and measure, read back from files of the given scores and ids."""
    measures = {
        "mrr": reference.RR,
        "mrr@10": reference.RR @ 10,
        "p@1": reference.P @ 1,
        **{f"recall@{n}": reference.R @ n for n in (1, 5, 10, 20)},
        **{f"hit@{n}": reference.Success @ n for n in (1, 5, 10)},
        "ndcg@10": reference.nDCG @ 10,
        "map": reference.AP,
    }
    names = {str(measure): name for name, measure in measures.items()}

    def values(scores, candidate_ids):
        found = evaluate(lambda a, b: scores[a:b], QRELS, candidates=CANDIDATES, depth=CANDIDATES)
        ids = [f"q{n}" for n in range(QUESTIONS)], candidate_ids
        write_run(tmp_path / "run", *ids, found.top_ids, found.top_scores, "t")
        write_qrels(tmp_path / "qrels", *ids, QRELS)
        write_per_question(tmp_path / "rows", ids[0], found)
        ours = {row["id"]: row for row in map(json.loads, (tmp_path / "rows").read_text().splitlines())}
        theirs = collections.defaultdict(dict)
        files = reference.read_trec_qrels(str(tmp_path / "qrels")), reference.read_trec_run(str(tmp_path / "run"))
        for found in reference.iter_calc(list(measures.values()), *files):
            theirs[found.query_id][names[str(found.measure)]] = found.value
        return ours, theirs, list(measures)

    return values


IDS = [f"d{n:02}" for n in range(CANDIDATES)]


@pytest.mark.parametrize("scores", [DISTINCT, HARMLESS], ids=["distinct", "harmless ties"])
def test_without_ties_of_right_and_wrong_both_agree(both, scores):
    ours, theirs, measures = both(scores, IDS)
    for question in ours:
        assert {name: ours[question][name] for name in measures} == pytest.approx(theirs[question], abs=1e-6)


def test_a_tie_of_right_and_wrong_is_broken_by_ids_there_and_by_the_mean_here(both):
    tied = (DISTINCT // 4).astype(np.float32)
    ours, forwards, _ = both(tied, IDS)
    _, backwards, _ = both(tied, IDS[::-1])
    one = [f"q{n}" for n in range(QUESTIONS) if len(QRELS[n]) == 1]
    assert any(forwards[question]["mrr"] != backwards[question]["mrr"] for question in one)
    for question in one:  # the mean of the place under an order of the ids and under its reverse
        places = [1 / theirs[question]["mrr"] for theirs in (forwards, backwards)]
        assert np.mean(places) == pytest.approx(ours[question]["ranks"][0], abs=1e-4)


def test_rr_with_a_cutoff_breaks_ties_the_other_way_round(both):
    """ir-measures computes it with the script of MS MARCO, which puts equal scores in the order of ids."""
    level = np.zeros_like(DISTINCT)
    _, theirs, _ = both(level, IDS)
    first = next(n for n in range(QUESTIONS) if QRELS[n][0] < 9)
    assert theirs[f"q{first}"]["mrr@10"] == pytest.approx(1 / (QRELS[first][0] + 1))
    assert theirs[f"q{first}"]["mrr"] == pytest.approx(1 / (CANDIDATES - QRELS[first][-1]))
