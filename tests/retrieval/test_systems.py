"""Pools that share embeddings are ranked as each would be by itself."""

import numpy as np

from endx_jax.data.records import RetrievalSet
from endx_jax.data.subsets import with_many_questions
from endx_jax.retrieval.systems import evaluate_dense

RECORDS = RetrievalSet(
    questions=tuple(f"q{n}" for n in range(6)),
    candidates=tuple(f"c{n}" for n in range(5)),
    qrels=((0,), (0, 1), (0,), (2,), (2,), (3,)),
    question_ids=tuple(f"Q{n}" for n in range(6)),
    candidate_ids=tuple(f"C{n}" for n in range(5)),
)


def encode(side, texts):
    """A vector that depends on the text alone."""
    seeds = [[side == "answer", int(text[1:])] for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=8) for seed in seeds]).astype(np.float32)


def test_every_pool_is_ranked_as_if_it_were_alone():
    name = "answers>=3-alone"
    part = with_many_questions(RECORDS, (3,))[name]
    asked = []

    def counted(side, texts):
        asked.append((side, len(texts)))
        return encode(side, texts)

    together = evaluate_dense(counted, {name: part, "all": RECORDS}, reverse=True)
    assert asked == [("question", 6), ("answer", 5)]
    alone = evaluate_dense(encode, {name: part}, reverse=True)
    np.testing.assert_array_equal(together.questions, alone.questions)  # of the first pool
    np.testing.assert_array_equal(together.candidates, alone.candidates)
    for found, expected in ((together.evaluations, alone.evaluations), (together.reverse, alone.reverse)):
        np.testing.assert_array_equal(found[name].ranks, expected[name].ranks)
        np.testing.assert_array_equal(found[name].top_ids, expected[name].top_ids)
    assert together.reverse[name].candidates == 3
    assert together.evaluations["all"].questions == 6
