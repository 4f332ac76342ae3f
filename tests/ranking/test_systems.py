import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import mesh_of
from small_index import embed
from small_records import records_of

from endx_jax.data.sets.records import Pools
from endx_jax.data.sets.splits import with_many_questions
from endx_jax.ranking import search
from endx_jax.ranking.evaluate import evaluate_scores
from endx_jax.ranking.search import Corpus
from endx_jax.ranking.systems import dense_scores, evaluate_dense


def draw(questions=150, candidates=704, width=48):
    """Candidates of which a third are copies of others, and a third differ from others in one last bit."""
    rng = np.random.default_rng(0)
    question = rng.standard_normal((questions, width)).astype(np.float32)
    candidate = rng.standard_normal((candidates, width)).astype(np.float32)
    third = candidates // 3
    original = rng.integers(0, third, candidates)
    candidate[third : 2 * third] = candidate[original[third : 2 * third]]
    candidate[2 * third :] = candidate[original[2 * third :]]
    candidate[2 * third :, 0] = np.nextafter(candidate[2 * third :, 0], np.float32(9))
    order = rng.permutation(candidates)
    qrels = [sorted(rng.choice(candidates, 1 + q % 3, replace=False).tolist()) for q in range(questions)]
    return question, candidate[order], qrels


def test_scores_are_float32_inner_products():
    question, candidate, _ = draw()
    scores = dense_scores(question, candidate)(16, 37)
    assert (scores.shape, scores.dtype) == ((21, 704), jnp.float32)
    exact = question[16:37].astype(np.float64) @ candidate.T.astype(np.float64)
    # Far below the 1e-2 of bfloat16 passes and the 1e-3 of TF32.
    np.testing.assert_allclose(scores, exact, atol=2e-5)


@pytest.mark.parametrize("candidates", [37, 704])
def test_equal_candidates_have_equal_scores_wherever_they_stand(candidates):
    question, candidate, _ = draw(candidates=candidates)
    scores = np.asarray(dense_scores(question, candidate)(0, 150))
    unique, first, copy_of = np.unique(candidate, axis=0, return_index=True, return_inverse=True)
    assert len(unique) < candidates
    np.testing.assert_array_equal(scores, scores[:, first[copy_of.ravel()]])


@pytest.mark.parametrize("options", [{}, {"block": 512}, {"resident": False, "block": 128}])
def test_blocks_of_candidates_on_any_number_of_devices_give_the_same_bits(options):
    question, candidate, qrels = draw()
    expected = dense_scores(question, candidate)(0, 150)
    for devices in (1, 8):
        mesh = mesh_of(devices)
        scores = Corpus(candidate, mesh=mesh, **options).scores(question)
        np.testing.assert_array_equal(scores(0, 150), expected)
        np.testing.assert_array_equal(scores(35, 42), expected[35:42])
    found, alone = (
        evaluate_scores(score, qrels, candidates=704) for score in (scores, dense_scores(question, candidate))
    )
    np.testing.assert_array_equal(found.ranks, alone.ranks)


def test_candidates_that_do_not_fit_on_the_device_are_sent_for_each_block_of_questions(monkeypatch):
    question, candidate, _ = draw()
    expected = dense_scores(question, candidate)(0, 150)
    monkeypatch.setattr(search, "SHARE", 0)
    held = len(jax.live_arrays())
    scores = dense_scores(question, candidate)
    assert len(jax.live_arrays()) <= held
    np.testing.assert_array_equal(scores(0, 150), expected)


RECORDS = records_of([(0,), (0, 1), (0,), (2,), (2,), (3,)], [f"c{n}" for n in range(5)])


def encode(side, texts):
    return embed(texts)


def test_every_pool_is_ranked_as_if_it_were_alone():
    name = "answers>=3-alone"
    part = with_many_questions(RECORDS, (3,))[name]
    asked = []

    def counted(side, texts):
        asked.append((side, len(texts)))
        return encode(side, texts)

    together = evaluate_dense(counted, Pools({name: part, "all": RECORDS}), reverse=True)
    assert asked == [("question", 6), ("answer", 5)]
    alone = evaluate_dense(encode, Pools({name: part}), reverse=True)
    np.testing.assert_array_equal(together.questions, alone.questions)  # of the first pool
    np.testing.assert_array_equal(together.candidates, alone.candidates)
    for found, expected in ((together.evaluations, alone.evaluations), (together.reverse, alone.reverse)):
        np.testing.assert_array_equal(found[name].ranks, expected[name].ranks)
        np.testing.assert_array_equal(found[name].top_ids, expected[name].top_ids)
    sides = {"question": embed(RECORDS.questions), "answer": embed(RECORDS.candidates)}
    whole = evaluate_dense(lambda side, texts: sides[side], Pools({"all": RECORDS, name: part}))
    assert whole.questions is sides["question"]  # and not copies
    assert whole.candidates is sides["answer"]
    assert (together.reverse[name].candidates, together.evaluations["all"].questions) == (3, 6)
