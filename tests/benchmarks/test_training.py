import json

import pytest


@pytest.fixture
def measure(start, tiny_bert, pairs_csv, tmp_path):
    """Runs the benchmark on the tiny tower and returns its rows."""

    def run(*peers: str) -> list[dict]:
        file = tmp_path / "result.json"
        sizes = ("--batch=16", "--length=24", "--repeats=2")
        start("training", f"--data={pairs_csv}", f"--model={tiny_bert}", *sizes, f"--json={file}", "--peers", *peers)
        return json.loads(file.read_text())["results"]

    return run


def test_measures_ours_alone(measure):
    (row,) = measure()
    assert row["step"] == "endx_jax"
    assert row["pairs_per_second"] == pytest.approx(16 / row["seconds"])
    assert row["last_loss"] != row["first_loss"]
    assert row["padding"] >= 1.0


def test_stops_when_the_losses_differ(script):
    check = script("training").check_same_work
    check({"endx_jax": 0.5, "peer": 0.50005}, 1e-4)
    with pytest.raises(SystemExit, match=r"the first losses differ by more than 0\.0001"):
        check({"endx_jax": 0.5, "peer": 0.5002}, 1e-4)


@pytest.mark.slow
def test_peers_make_the_same_steps(measure):
    for package in ("sentence_transformers", "datasets", "accelerate"):
        pytest.importorskip(package, reason="the extra [reference] is not installed")
    rows = measure("plain", "4")
    assert [row["step"] for row in rows] == ["endx_jax", "sentence-transformers, plain", "sentence-transformers, 4"]
    for loss in ("first_loss", "last_loss"):  # the last is after an update
        assert [row[loss] for row in rows] == pytest.approx([rows[0][loss]] * 3, abs=1e-5)
    assert max(row["to_fastest_peer"] for row in rows[1:]) == 1.0
