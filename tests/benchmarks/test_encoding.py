import json

import pytest
from small_squad import write_squad


@pytest.fixture
def measure(start, tiny_bert, tmp_path):
    """Runs the benchmark on the tiny tower and returns its rows."""

    def run(*arguments: str) -> list[dict]:
        file, folder = tmp_path / "result.json", write_squad(tmp_path / "squad")
        start(
            "encoding",
            f"--data={folder}",
            f"--model={tiny_bert}",
            "--texts=2",
            "--repeats=1",
            f"--json={file}",
            *arguments,
        )
        return json.loads(file.read_text())["results"]

    return run


def test_measures_ours_alone(measure):
    sentences, questions = measure("--peer_batches")
    assert (sentences["texts"], questions["texts"]) == ("2 sentences", "2 questions")
    assert sentences["texts a second"] == pytest.approx(2 / sentences["seconds"])
    assert sentences["programs compiled"] > 0
    assert sentences["padding"] >= 1.0


def test_stops_when_the_embeddings_differ(script):
    check = script("encoding").check_same_work
    check({"endx_jax": 0.0, "peer": 9e-6})
    for off in (2e-5, float("nan")):
        with pytest.raises(SystemExit, match="embeddings differ"):
            check({"endx_jax": 0.0, "peer": off})


@pytest.mark.slow
def test_the_peer_finds_the_same(measure):
    pytest.importorskip("sentence_transformers", reason="the extra [reference] is not installed")
    rows = measure("--peer_batches", "2", "8")
    assert [row["encoder"] for row in rows[:3]][1:] == [f"sentence-transformers, batches of {n}" for n in (2, 8)]
    assert max(row["largest difference"] for row in rows) < 1e-5
    assert max(row["speed / fastest peer"] for row in rows[1:3]) == 1.0
