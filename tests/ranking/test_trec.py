import json

import numpy as np
import pytest

from endx_jax.ranking.evaluate import evaluate_scores
from endx_jax.ranking.trec import read_qrels, write_qrels, write_run, write_system

IDS = np.array([[2, 0], [1, 2]], np.int32)
SCORES = np.array([[0.5, 0.25], [3.0, -1.5]], np.float32)


def test_run_and_qrels_lines(tmp_path):
    write_run(tmp_path / "run.trec", ["q1", "q2"], ["a", "b", "c"], IDS, SCORES, "dual")
    lines = (tmp_path / "run.trec").read_text().splitlines()
    assert lines == ["q1 Q0 c 1 0.5 dual", "q1 Q0 a 2 0.25 dual", "q2 Q0 b 1 3 dual", "q2 Q0 c 2 -1.5 dual"]
    write_qrels(tmp_path / "new" / "qrels", ["q1", "q2"], ["a", "b", "c"], [[0, 2], [1]])
    assert (tmp_path / "new" / "qrels").read_text() == "q1 0 a 1\nq1 0 c 1\nq2 0 b 1\n"
    write_qrels(tmp_path / "qrels", ["q1", "q2"], ["a", "b", "c"], [[0, 2], [1]], [[2, 1], [3]])
    assert (tmp_path / "qrels").read_text().splitlines() == ["q1 0 a 2", "q1 0 c 1", "q2 0 b 3"]
    scores = np.float32([[1.0, -np.inf]])
    write_run(tmp_path / "run", ["q1"], ["a", "b"], np.int32([[1, 0]]), scores, "t")
    assert (tmp_path / "run").read_text() == "q1 Q0 b 1 1 t\n"


def test_judgements_of_trec_and_of_beir_read_alike(tmp_path):
    (tmp_path / "trec").write_text("q%201 0 a 1\nq%201 0 b 0\nq2 0 c 2\n")
    (tmp_path / "beir.tsv").write_text("query-id\tcorpus-id\tscore\nq 1\ta\t1\nq 1\tb\t0\nq2\tc\t2\n")
    right = {"q%201": {"a": 1.0}, "q2": {"c": 2.0}}
    assert read_qrels(tmp_path / "trec") == read_qrels(tmp_path / "beir.tsv") == right


def test_scores_read_back_exactly(tmp_path):
    # Neighbouring floats, of which eight digits would make some equal.
    sizes = 10 ** np.random.default_rng(0).uniform(-30, 30, 500).astype(np.float32)
    scores = np.stack([np.nextafter(sizes, np.float32(np.inf)), sizes]).T
    ids = [f"q{n}" for n in range(500)]
    write_run(tmp_path / "run", ids, ["a", "b"], np.tile(np.int32([0, 1]), (500, 1)), scores, "t")
    read = [np.float32(line.split()[4]) for line in (tmp_path / "run").read_text().splitlines()]
    np.testing.assert_array_equal(np.reshape(read, (500, 2)), scores)


def test_per_question_lines(tmp_path):
    scores = np.float32([[1, 2, 0], [3, 3, 0]])
    found = evaluate_scores(lambda start, stop: scores[start:stop], [[0], [1]], candidates=3)
    write_system(tmp_path, "bm25", ["é 1", "q2"], ["a", "b", "c"], found)
    assert (tmp_path / "bm25.run.trec").read_text().splitlines()[0] == "é%201 Q0 b 1 2 bm25"
    lines = (tmp_path / "bm25.per_question.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    found = [(row["id"], row["question"], row["ranks"], row["mrr"]) for row in rows]
    assert found == [("é 1", 0, [2.0], 0.5), ("q2", 1, [1.5], pytest.approx(1 / 1.5))]


@pytest.mark.parametrize(("name", "column"), [("a b", "a%20b"), ("a\n", "a%0A"), ("\u00a0", "%C2%A0"), ("50%", "50%")])
def test_white_space_in_ids_is_encoded(tmp_path, name, column):
    write_qrels(tmp_path / "qrels", [name], [name], [[0]])
    assert (tmp_path / "qrels").read_text() == f"{column} 0 {column} 1\n"
    write_run(tmp_path / "run", [name], [name], IDS[:1, :1] * 0, SCORES[:1, :1], name)
    assert (tmp_path / "run").read_text() == f"{column} Q0 {column} 1 0.5 {column}\n"


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "qrels"
    write_qrels(path, ["q1"], ["a"], [[0]])
    with pytest.raises(KeyError):
        write_qrels(path, ["q1", "q2"], ["a"], [[0], [7]])
    assert path.read_text() == "q1 0 a 1\n"
    assert list(tmp_path.iterdir()) == [path]
