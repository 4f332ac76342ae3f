import dataclasses
import json

import numpy as np
import pytest
from refusals import check_refusal
from small_records import records_of

from endx_jax.data.batches.ragged import RaggedVectors
from endx_jax.data.sets.records import Pools, RetrievalSet
from endx_jax.index.index_model import stored_hybrid
from endx_jax.inference.manifest import MANIFEST
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import evaluate_scores
from endx_jax.ranking.hybrid import ENOUGH, FUSED, GRID, Hybrid, fit_fusion, reciprocal_ranks, surest
from endx_jax.ranking.results import Results
from endx_jax.ranking.systems import evaluate_dense

DENSE = [(7, 0.9), (3, 0.6), (5, 0.1)]
LEXICAL = [(3, 30.0), (9, 20.0)]


def test_reciprocal_ranks_are_summed_and_ties_keep_the_order_of_the_first_ranking():
    scores = {3: 1 / 62 + 1 / 61, 7: 1 / 61, 9: 1 / 62, 5: 1 / 63}
    assert reciprocal_ranks([DENSE, LEXICAL]) == [(item, pytest.approx(score)) for item, score in scores.items()]
    assert [item for item, _ in reciprocal_ranks([[(8, 1)], [(2, 1)]])] == [8, 2]
    assert [item for item, _ in Hybrid(0.0).fuse([(8, 1.0), (2, 1.0)], [(2, 5.0)], 9)] == [8, 2]


def test_the_best_known_question_raises_a_dense_score_by_its_weight():
    dense, known = np.float32([[0.25, -0.5]]), np.float32([[1.0, 0.5]])
    for weight, expected in ((0.0, [0.25, -0.5]), (0.5, [0.5, 0.25]), (0.125, [0.25, 0.0625])):
        scores = Hybrid(known=weight).with_known_questions(lambda *_: dense, lambda *_: known)
        assert scores(0, 1).tolist() == [expected]


def test_scores_are_summed_as_they_are():
    assert (Hybrid().weight, Hybrid().known) == (0.08, 0.65)
    # Item 9 has the lowest dense score. BM25 found all of 3 requested or fewer: the others share no word.
    found = Hybrid(0.01).fuse(DENSE, LEXICAL, depth=3)
    assert found == [(7, 0.9), (3, pytest.approx(0.6 + 0.3)), (9, pytest.approx(0.1 + 0.2)), (5, 0.1)]
    # BM25 found as many as were requested, so that others may have up to 20 points.
    found = dict(Hybrid(0.01).fuse(DENSE, LEXICAL, depth=2))
    assert found == {3: pytest.approx(0.9), 7: pytest.approx(1.1), 9: pytest.approx(0.3), 5: pytest.approx(0.3)}
    assert Hybrid(0.01).fuse([], LEXICAL, 3) == [(3, 0.3), (9, 0.2)]
    assert Hybrid(0.01).fuse(DENSE, [], 3) == DENSE


def words_and_meaning(questions: int) -> tuple[RetrievalSet, np.ndarray, np.ndarray]:
    """Questions whose answers share a rare word with them, among answers between which embeddings do not decide."""
    rng = np.random.default_rng(0)
    texts = [f"word{n} and {'more ' * (n % 3)}" for n in range(questions)]
    records = records_of([(n,) for n in range(questions)], texts, [f"word{n} so" for n in range(questions)])
    return records, *(rng.standard_normal((2, questions, 8)).astype(np.float32) / 8)


def test_the_surest_gain_is_that_with_the_highest_lower_end():
    draw = np.random.default_rng(0)
    for size in (2, 5, 200):
        values = draw.random((6, size)).astype(np.float32)
        lower = []
        for row in values.astype(np.float64):
            gains = [after - before for before, after in zip(values[0].tolist(), row, strict=True)]
            mean = sum(gains) / size
            lower.append(mean - (sum((gain - mean) ** 2 for gain in gains) / size / size) ** 0.5)
        assert surest(values) == lower.index(max(lower))
    # A gain of one question and a loss of the other are not sure; a smaller gain of both is.
    assert surest([np.zeros(2), np.array([1.0, -0.5])]) == 0
    assert surest([np.zeros(2), np.array([1.0, -0.5]), np.full(2, 0.1)]) == 2


@pytest.mark.parametrize("weight", [0.3, None])
def test_the_row_is_exact_over_the_whole_pool(weight):
    count = 2 * FUSED
    records, asked, ranked = words_and_meaning(count)
    results = Results("data", "test", Pools(all=records), hybrid=Hybrid(weight))
    results.add_bm25()
    sides = {"question": asked, "answer": ranked}
    dense = evaluate_dense(lambda side, _: sides[side], results.pools, fuse=results.fuse)
    results.add_dense("model", dense)
    assert list(results.evaluations["all"]) == ["bm25", "model", "hybrid"]
    scores, words = asked @ ranked.T, BM25.of_texts(records.candidates).scaled_block(records.questions)(0, count)
    if weight is None:  # as a search fuses them
        found = np.zeros((count, count))
        for n in range(count):
            by_words = [(int(row), 0) for row in np.argsort(-words[n], kind="stable")[:FUSED] if words[n, row] > 0]
            rankings = [[(int(row), 0) for row in np.argsort(-scores[n], kind="stable")[:FUSED]], by_words]
            for row, score in reciprocal_ranks(rankings):
                found[n, row] = score
    else:
        found = scores + weight * words
    expected = evaluate_scores(lambda a, b: found[a:b].astype(np.float32), records.qrels, candidates=count, block=16)
    np.testing.assert_array_equal(results.evaluations["all"]["hybrid"].ranks, expected.ranks)
    np.testing.assert_allclose(results.evaluations["all"]["hybrid"].top_scores, expected.top_scores, atol=1e-6)
    assert results.evaluations["all"]["hybrid"].metrics["mrr"] > results.evaluations["all"]["model"].metrics["mrr"]
    assert f"hybrid: model and BM25 over the whole pool, {Hybrid(weight)}" in results.tables()


def words_of(records):
    return BM25.of_texts(records.candidates).scaled_block(records.questions)


@pytest.mark.parametrize("count", [60, 120])
def test_the_weight_is_fitted_on_validation_questions(count):
    records, asked, ranked = words_and_meaning(count)

    def fitted(dense, records=records, *, cosine=True):
        return fit_fusion(lambda a, b: dense[a:b], words_of(records), records, "mrr", cosine=cosine)

    # Noise needs a large weight; scores that are perfect need none, and few questions keep the default.
    assert fitted(10 * asked @ ranked.T) == Hybrid(max(GRID), count)
    assert fitted(np.eye(count, dtype=np.float32)) == (Hybrid() if count < ENOUGH else Hybrid(0.0, count))
    # Words that mislead get none: each answer is perfect but for a small margin.
    misled = dataclasses.replace(records, qrels=tuple(((n + 1) % count,) for n in range(count)))
    right = np.roll(np.eye(count, dtype=np.float32), 1, axis=1) * 0.001
    assert fitted(right, misled) == Hybrid(0.0, count)
    assert fitted(right, misled, cosine=False) == Hybrid(0.0, count, known=0.0)
    few = Hybrid(None, known=0.0)
    assert fitted(asked @ ranked.T, cosine=False) == dataclasses.replace(few, questions=0 if count < ENOUGH else count)


def test_the_model_folder_says_how_to_fuse(trained_workdir, tmp_path):
    folder = tmp_path / "run"
    about = json.loads((trained_workdir / "model" / MANIFEST).read_text())
    assert Hybrid(**about["hybrid"]) == Hybrid()  # there are too few validation questions
    folder.mkdir()

    def stored(**changed):
        (folder / MANIFEST).write_text(json.dumps({**about, **changed}))
        return stored_hybrid(folder, cosine=True)

    fitted = {"weight": 0.05, "questions": 123, "bm25": Hybrid().bm25}
    assert stored(hybrid=fitted) == Hybrid(0.05, 123)
    assert str(stored(hybrid=fitted)) == "dense + 0.05 x BM25 (weight: fitted on 123 validation questions)"
    assert stored(hybrid={**fitted, "bm25": BM25.DESCRIPTION}) == Hybrid()  # of scores that are not scaled
    assert stored(hybrid={**fitted, "weight": None}).weight is None
    assert stored(hybrid={**fitted, "bm25": "with other settings"}) == Hybrid()
    del about["hybrid"]
    assert stored() == Hybrid()
    for source in (folder, "all-MiniLM-L6-v2"):
        assert stored_hybrid(source, cosine=False) == Hybrid(None, known=0.0)
    check_refusal(lambda: stored(hybrid={"weight": "x"}), "endx.json", "'hybrid'", "weight", "'x'")
    check_refusal(lambda: stored(hybrid={"weight": -1}), "the weight of BM25", "from 0 up")


def test_maxsim_is_fused_as_a_mean_over_the_tokens_of_the_question():
    """The default weight is for cosines, and MaxSim grows with the question's tokens."""
    records, *_ = words_and_meaning(4)
    draw = np.random.default_rng(3)
    lengths = {"question": (1, 2, 3, 4), "answer": (3,) * 4}
    drawn = {side: [draw.standard_normal((k, 8)).astype(np.float32) for k in lengths[side]] for side in lengths}
    texts = {side: RaggedVectors.of(vectors) for side, vectors in drawn.items()}
    pools, blocks = Pools(all=records), []
    dense = evaluate_dense(lambda side, _: texts[side], pools, fuse=lambda _, block: blocks.append(block) or block)
    expected = [[(q @ a.T).max(axis=1).mean() for a in texts["answer"]] for q in texts["question"]]
    np.testing.assert_allclose(blocks[0](0, 4), expected, rtol=1e-5)
    np.testing.assert_allclose(blocks[0](2, 3), expected[2:3], rtol=1e-5)
    ranked = dense.evaluations["all"]
    np.testing.assert_allclose(ranked.top_scores[:, 0], np.max(expected, axis=1) * (1, 2, 3, 4), rtol=1e-5)
