"""Scores, judgements, settings and files that ranking refuses, and the words of the line: place, value, remedy."""

import numpy as np
import pytest
from helpers import mesh_of, written
from refusals import check_refusal

from endx_jax.data.sets.documents import Document, FoundDocument
from endx_jax.ranking.bm25 import BM25
from endx_jax.ranking.evaluate import evaluate_scores
from endx_jax.ranking.hybrid import Hybrid
from endx_jax.ranking.mining import Margin, MiningSettings, Similarities, encoded
from endx_jax.ranking.rerank import rerank_answers
from endx_jax.ranking.search import top_k
from endx_jax.ranking.systems import dense_scores
from endx_jax.ranking.trec import read_qrels, write_qrels, write_run

QUESTIONS, CANDIDATES = np.ones((4, 3), np.float32), np.ones((6, 3), np.float32)


def search(questions=QUESTIONS, candidates=CANDIDATES, k=5, **options):
    return lambda: top_k(questions, candidates, k, **options)


def many(count):  # the ids of the last block's padding would overflow
    return search(candidates=np.broadcast_to(CANDIDATES[:1], (count, 3)))


def judged(*qrels, scores=np.zeros((2, 3), np.float32), **options):  # noqa: B008  # not changed
    return lambda: evaluate_scores(lambda a, b: scores[a:b], qrels, candidates=3, **options)


def reranked(scores):
    answers = [FoundDocument(n, 0.0, Document(f"{n}", "a")) for n in (1, 2)]
    return lambda: rerank_answers(lambda *texts: lambda pairs: np.float32(scores), ["?"], [answers], k=1)


def similarity(value):
    rows = np.float32([[1, 2], [value, 0]])
    return lambda: Similarities(encoded(rows), encoded(rows))(np.array([[0, 0], [0, 1]]))


ONE_NAN = np.float32([[0, 0, 0]] * 3 + [[0, np.nan, 0], [0, 0, 0]])
NOT_FINITE = "candidate 1 finite: use another model"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (search(candidates=CANDIDATES[:, :2]), "(4, 3) (6, 2) same model"),
        (search(questions=QUESTIONS[0]), "question (3,)"),
        (search(k=0, block=8), "k 0 at least 1"),
        (search(block=0), "block 0 at least 1"),
        (search(scales=np.ones(5, np.float32)), "scales (5,) 6"),
        (search(where=np.ones(7, bool)), "where (7,) 6"),
        (many(2**31), "2147483648 32-bit"),
        (many(2**31 - 2), "2147483646 32-bit"),
        (lambda: dense_scores(np.zeros((3, 8)), np.zeros((4, 9))), "(3, 8) (4, 9)"),
        (judged(), "no question"),
        (judged([0], []), "question 1 no right candidate"),
        (judged([0], [2, 2]), "question 1 twice"),
        (judged([0], [3]), "question 1 pool of 3"),
        (judged([-1], [0]), "question 0 pool of 3"),
        (judged(*[[0]] * 5, scores=ONE_NAN, block=2), "question 3 nan"),
        (lambda: BM25.of_texts([]), "no word 0 candidates"),
        (lambda: BM25.of_texts(["", "? !"]), "no word 2 candidates"),
        *((lambda weight=weight: Hybrid(weight), "weight BM25 from 0 up") for weight in (-0.1, np.inf, np.nan)),
        (lambda: MiningSettings(negatives=0), "negatives 0 from 1"),
        (lambda: MiningSettings(first_rank=0), "first_rank 0 from 1"),
        (lambda: MiningSettings(first_rank=11, last_rank=10), "ranks 11 to 10"),
        (lambda: MiningSettings(margin=Margin(absolute=-0.1)), "margin -0.1"),
        (lambda: MiningSettings(margin=Margin(relative=-1.0)), "margin -1.0"),
        (similarity(np.inf), f"question 0 {NOT_FINITE}"),
        (similarity(np.nan), f"question 0 {NOT_FINITE}"),
        (reranked([1, np.nan]), f"question 0 {NOT_FINITE}"),
    ],
)
def test_arrays_and_settings_are_refused(call, words):
    check_refusal(call, *words.split())


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("count", [1, 8])
def test_scores_that_are_not_finite_name_the_question_on_any_number_of_devices(value, count):
    mesh = mesh_of(count)
    questions, candidates = np.ones((19, 3)), np.ones((130, 3))
    for row in (0, 129):
        wrong = candidates.copy()
        wrong[row, 1] = value
        check_refusal(search(questions, wrong, mesh=mesh, block=16), "question 0 ", "nan or infinity")
    questions[17, 2] = value
    check_refusal(search(questions, candidates, mesh=mesh, block=16), "question 17 ", "nan or infinity")


IDS, SCORES = np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda file: write_qrels(file, [""], ["a"], [[0]]), "question empty"),
        (lambda file: write_qrels(file, ["q"], ["a", "a"], [[0]]), "candidate 'a' twice"),
        (lambda file: write_run(file, ["q"], ["a"], IDS, SCORES, ""), "tag empty"),
    ],
)
def test_names_that_no_file_may_have_are_refused_and_nothing_is_written(tmp_path, call, words):
    check_refusal(lambda: call(tmp_path / "file"), *words.split())
    assert list(tmp_path.iterdir()) == []


def test_a_grade_that_is_none_is_named_with_its_line(tmp_path):
    file = written(tmp_path / "beir.tsv", "query-id\tcorpus-id\tscore\nq\ta\tx\n")
    check_refusal(lambda: read_qrels(file), str(file), "line 2", "'a'", "'q'", "'x'")
