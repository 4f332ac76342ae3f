"""Our measures against ir-measures, on files as runs write them; docs/evaluation.md says where the two differ."""

import collections
import json

import numpy as np
import pytest
from small_beir import write_beir
from small_index import make_index

from endx_jax.data.formats import open_data
from endx_jax.data.sets.documents import Document
from endx_jax.data.sets.records import Pools
from endx_jax.index.index_evaluation import evaluate_judged, find_rows
from endx_jax.ranking.evaluate import evaluate_scores, evaluate_set
from endx_jax.ranking.results import Results
from endx_jax.ranking.trec import write_qrels, write_system

QUESTIONS, CANDIDATES = 16, 40
# Three right candidates for every other question, one for the rest.
DRAW = np.random.default_rng(0)
QRELS = [sorted(DRAW.choice(CANDIDATES, 1 + 2 * (n % 2), replace=False).tolist()) for n in range(QUESTIONS)]
DISTINCT = DRAW.permuted(np.tile(np.arange(CANDIDATES), (QUESTIONS, 1)), axis=1).astype(np.float32)
MEASURES = {"mrr": "RR", "map": "AP", "ndcg@10": "nDCG@10", "recall@5": "R@5", "p@1": "P@1", "recall@20": "R@20"}


def right(question):
    return np.isin(np.arange(CANDIDATES), QRELS[question])


# Ties among wrong candidates and ties among right ones, and none between the two.
HARMLESS = np.stack([scores // 4 * 2 + right(n) for n, scores in enumerate(DISTINCT)]).astype(np.float32)


@pytest.fixture(scope="module")
def reference():
    import ir_measures

    return ir_measures


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
        found = evaluate_scores(lambda a, b: scores[a:b], QRELS, candidates=CANDIDATES, depth=CANDIDATES)
        ids = [f"q{n}" for n in range(QUESTIONS)], candidate_ids
        write_system(tmp_path, "t", *ids, found)
        write_qrels(tmp_path / "qrels", *ids, QRELS)
        ours = {row["id"]: row for row in map(json.loads, (tmp_path / "t.per_question.jsonl").read_text().splitlines())}
        theirs = collections.defaultdict(dict)
        files = reference.read_trec_qrels(f"{tmp_path}/qrels"), reference.read_trec_run(f"{tmp_path}/t.run.trec")
        for found in reference.iter_calc(list(measures.values()), *files):
            theirs[found.query_id][names[str(found.measure)]] = found.value
        return ours, theirs, list(measures)

    return values


IDS = [f"d{n:02}" for n in range(CANDIDATES)]


@pytest.mark.reference
@pytest.mark.parametrize("scores", [DISTINCT, HARMLESS], ids=["distinct", "harmless ties"])
def test_without_ties_of_right_and_wrong_both_agree(both, scores):
    ours, theirs, measures = both(scores, IDS)
    for question in ours:
        assert {name: ours[question][name] for name in measures} == pytest.approx(theirs[question], abs=1e-6)


@pytest.mark.reference
def test_a_tie_of_right_and_wrong_is_broken_by_ids_there_and_by_the_mean_here(both):
    tied = (DISTINCT // 4).astype(np.float32)
    ours, forwards, _ = both(tied, IDS)
    _, backwards, _ = both(tied, IDS[::-1])
    one = [f"q{n}" for n in range(QUESTIONS) if len(QRELS[n]) == 1]
    assert any(forwards[question]["mrr"] != backwards[question]["mrr"] for question in one)
    for question in one:  # the mean of the place under an order of the ids and under its reverse
        places = [1 / theirs[question]["mrr"] for theirs in (forwards, backwards)]
        assert np.mean(places) == pytest.approx(ours[question]["ranks"][0], abs=1e-4)


@pytest.mark.reference
def test_rr_with_a_cutoff_breaks_ties_the_other_way_round(both):
    """ir-measures computes it with the script of MS MARCO, which puts equal scores in the order of ids."""
    level = np.zeros_like(DISTINCT)
    _, theirs, _ = both(level, IDS)
    first = next(n for n in range(QUESTIONS) if QRELS[n][0] < 9)
    assert theirs[f"q{first}"]["mrr@10"] == pytest.approx(1 / (QRELS[first][0] + 1))
    assert theirs[f"q{first}"]["mrr"] == pytest.approx(1 / (CANDIDATES - QRELS[first][-1]))


def write_folder(folder, *, graded: bool, shared: bool) -> dict[str, dict[str, int]]:
    """Writes a BEIR folder; returns its judgements, grades of 0 included."""
    draw, judged = np.random.default_rng(7), {}
    queries = [f"{n}" if shared else f"q{n}" for n in range(QUESTIONS)]
    for n, name in enumerate(queries):
        others = [c for c in draw.permutation(CANDIDATES).tolist() if c != n][: 2 + n % 5]
        grades = draw.integers(0, 4, len(others)) if graded else draw.integers(0, 2, len(others))
        grades[0] = 2 if graded else 1
        judged[name] = {str(c): int(grade) for c, grade in zip(others, grades, strict=True)}
    corpus = {f"{n}": f"text {n}" for n in range(CANDIDATES)}
    rows = [(name, c, grade) for name, own in judged.items() for c, grade in own.items()]
    write_beir(folder, corpus, {name: f"question {name}" for name in queries}, test=rows)
    return judged


@pytest.fixture(params=["graded", "binary", "shared ids"])
def judged_folder(request, tmp_path):
    """A folder, its judgements, scores without ties, and the run that a tool which drops a query's own id ranks."""
    folder = tmp_path / "data"
    judged = write_folder(folder, graded=request.param != "binary", shared=request.param == "shared ids")
    scores = DISTINCT.copy()
    if request.param == "shared ids":  # the own document is the best one
        scores[np.arange(QUESTIONS), np.arange(QUESTIONS)] = CANDIDATES
    ids = [f"{c}" for c in range(CANDIDATES)]
    rows = [{c: float(s) for c, s in zip(ids, row, strict=True)} for row in scores]
    run = {name: {c: s for c, s in row.items() if c != name} for name, row in zip(judged, rows, strict=True)}
    return folder, judged, scores, run


def expected_means(reference, qrels, run) -> dict[str, float]:
    measures = {name: reference.parse_measure(theirs) for name, theirs in MEASURES.items()}
    found = reference.calc_aggregate(list(measures.values()), qrels, run)
    return {name: found[measure] for name, measure in measures.items()}


@pytest.mark.reference
def test_graded_binary_and_shared_ids_have_the_reference_s_means(reference, judged_folder, tmp_path):
    folder, judged, scores, run = judged_folder
    expected = expected_means(reference, judged, run)
    records = open_data(folder).records()
    found = evaluate_set(lambda a, b: scores[a:b], records)
    assert {name: found.metrics[name] for name in MEASURES} == pytest.approx(expected, abs=1e-6)
    results = Results("data", "test", Pools(all=records))
    results.add("ours", {"all": found})
    results.write(tmp_path / "results.json", tmp_path)
    run = [*reference.read_trec_run(f"{tmp_path}/ours.run.trec")]
    files = [*reference.read_trec_qrels(f"{tmp_path}/qrels.trec")], run
    assert expected_means(reference, *files) == pytest.approx(expected, abs=1e-6)
    assert ("own id" in results.tables()) == (records.excluded is not None) == ("0" in judged)


@pytest.mark.reference
def test_an_index_of_such_a_folder_has_the_same_means(reference, judged_folder, tmp_path):
    folder, judged, scores, run = judged_folder
    documents = [Document(f"{c}", f"text {c}") for c in range(CANDIDATES)]
    # The embedding of candidate c is the c-th unit vector, so that a question's embedding is its row of scores.
    embeddings = np.eye(CANDIDATES, dtype=np.float32)
    snapshot = make_index(tmp_path / "index", embeddings, documents, metric="inner product").snapshot
    rows = find_rows(snapshot, open_data(folder).judgements())
    found = evaluate_judged(snapshot, rows, scores, depth=5)
    expected = expected_means(reference, judged, run)
    assert {name: found.metrics[name] for name in MEASURES} == pytest.approx(expected, abs=1e-6)
    best = [max(own, key=own.get) for own in run.values()]
    documents = dict(snapshot)
    assert [documents[row].id for row in found.top_ids[:, 0]] == best


def test_tied_right_candidates_share_their_mean_gain():
    scores = np.float32([[3, 2, 2, 1]])
    found = evaluate_scores(lambda a, b: scores[a:b], [[1, 2]], candidates=4, gains=[[1, 3]])
    other = evaluate_scores(lambda a, b: scores[a:b], [[1, 2]], candidates=4, gains=[[3, 1]])
    ideal = 3 / np.log2(2) + 1 / np.log2(3)
    assert found.metrics["ndcg@10"] == pytest.approx((2 / np.log2(3) + 2 / np.log2(4)) / ideal)
    assert found.metrics == other.metrics
