import json

import pytest


@pytest.mark.slow
def test_two_processes_give_what_one_gives(start, tiny_bert, tmp_path, monkeypatch):
    file, words = tmp_path / "result.json", [*"abcdefghij"]
    pairs = [f"who is {a}{b},the {b} of {a} is {a}{b}" for a in words for b in words]
    (tmp_path / "pairs.csv").write_text("\n".join(["question,answer", *pairs]) + "\n")
    start(
        "processes",
        "--topologies=1x1,2x2",
        "--methods=dual",
        f"--model={tiny_bert}",
        f"--data={tmp_path / 'pairs.csv'}",
        f"--json={file}",
    )
    rows = json.loads(file.read_text())["results"]
    assert [row["run"] for row in rows] == ["dual, 2x2", "dual, 2x2 then 1x1 then 2x2", "dual, encode, 2x2"]
    for row in rows[:2]:
        assert 0 <= row["losses, relative"] < 1e-5
        assert 0 <= row["embeddings"] < 1e-4
    assert rows[2]["embeddings"] < 1e-5
