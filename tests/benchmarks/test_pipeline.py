import json

import pytest


@pytest.fixture
def measure(start, tiny_bert, pairs_csv, tmp_path):
    """Runs the benchmark on the tiny tokenizer and returns its rows, by what they are about."""

    def run(*arguments: str) -> dict[str, dict]:
        file = tmp_path / "result.json"
        sizes = ("--length=24", "--batches", "16", "--pairs=32", "--repeats=1")
        start("pipeline", f"--data={pairs_csv}", f"--model={tiny_bert}", *sizes, f"--json={file}", *arguments)
        return {row["what"]: row for row in json.loads(file.read_text())["results"]}

    return run


def test_measures_ours_alone(measure):
    rows = measure("--no-peer")
    assert list(rows) == ["tokenise", "from the cache", "batches, 1 threads", "batches, 2 threads"]
    assert rows["batches, 1 threads"]["pairs_per_second"] == pytest.approx(32 / rows["batches, 1 threads"]["seconds"])
    assert rows["tokenise"]["texts_per_second"] > rows["tokenise"]["pairs_per_second"] > 0


@pytest.mark.slow
def test_the_peer_reads_the_same_pairs(measure):
    for package in ("sentence_transformers", "datasets", "accelerate"):
        pytest.importorskip(package, reason="the extra [reference] is not installed")
    rows = measure()
    assert rows["tokenise, transformers"]["to_peer"] == rows["batches, sentence-transformers"]["to_peer"] == 1.0
    peer, ours = rows["batches, sentence-transformers"], rows["batches, 1 threads"]
    assert peer["real_tokens_per_second"] * peer["seconds"] == pytest.approx(
        ours["real_tokens_per_second"] * ours["seconds"]
    )
