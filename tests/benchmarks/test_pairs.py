import json

import pytest
from small_squad import write_squad

from endx_jax.data.records import RetrievalSet


def test_the_paragraphs_with_most_questions_are_asked_in_turn(script):
    """Paragraph 0 has three questions, 1 has one, 2 has two, one of them with two right sentences."""
    records = RetrievalSet(
        questions=("a", "b", "c", "d", "e", "f"),
        candidates=("0.0", "0.1", "1.0", "2.0", "2.1"),
        qrels=((0,), (1,), (0,), (2,), (3,), (3, 4)),
        question_ids=tuple("abcdef"),
        candidate_ids=("s0.0", "s0.1", "s1.0", "s2.0", "s2.1"),
    )
    pool = script("pairs").small_pool(records, 2, 4)
    assert pool.questions == ("a", "e", "b", "f")
    assert len(pool.pairs) == 5
    assert pool.candidates == ("0.0", "2.0", "0.1", "2.1")
    assert script("pairs").small_pool(records, 2, 1).questions == ("a",)
    assert len(script("pairs").small_pool(records, 3, 99).questions) == 6


@pytest.mark.slow
def test_every_system_is_a_row(start, pair_workdir, trained_workdir, tmp_path):
    file, folder = tmp_path / "result.json", write_squad(tmp_path / "squad")
    printed = start(
        "pairs",
        f"--data={folder}",
        f"--pair={pair_workdir}",
        f"--run=tower={trained_workdir}",
        "--top=1",
        "--timed=1",
        f"--json={file}",
    )
    assert printed.startswith("2 questions, 2 pairs, 2 sentences")
    rows = json.loads(file.read_text())["results"]
    assert [row["system"] for row in rows] == [
        "BM25",
        "tower",
        "tower, its best 1 re-ranked",
        "pair classifier, all pairs",
    ]
    assert rows[1]["recall@1"] == rows[2]["recall@1"]
    assert all(row["ms"] > 0 for row in rows[1:])
