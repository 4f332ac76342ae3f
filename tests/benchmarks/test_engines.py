import json

import pytest
from small_squad import write_squad


def test_every_way_is_measured(start, tiny_bert, tmp_path):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    options = [
        f"--data={write_squad(tmp_path)}",
        f"--model={tiny_bert}",
        "--timed=2",
        f"--json={tmp_path / 'out.json'}",
    ]
    assert "3 sentences, 2 questions, 2 of them timed" in start("engines", *options)
    found = {row["way"]: row for row in json.loads((tmp_path / "out.json").read_text())["results"]}
    assert [row["recall@10 of exact"] for name, row in found.items() if name.startswith("faiss")] == [1.0] * 3
    assert all(0 < row["mrr@100"] <= 1 and row["p50 ms"] > 0 for row in found.values())


def test_quality_by_hand(script):
    found = [["a", "b"], ["c", "d"], []]
    assert script("engines").quality(found, [{"b"}, {"c", "d"}, {"e"}]) == {
        "mrr@100": pytest.approx((1 / 2 + 1) / 3),
        "hit@10": pytest.approx(2 / 3),
    }
