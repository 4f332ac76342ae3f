import json

import pytest


def test_ours_and_the_peer_find_the_same(start, tmp_path):
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    options = ["--candidates=3000", "--questions=20", "--width=16", "--repeats=1"]
    printed = start("search", *options, f"--json={tmp_path / 'search.json'}")
    assert "of 200 places differ" in printed
    result = json.loads((tmp_path / "search.json").read_text())
    faiss, ours = result["results"]
    assert faiss["time / faiss"] == 1
    assert ours["time / faiss"] == pytest.approx(ours["seconds"] / faiss["seconds"])
    assert ours["peak memory, GB"] > 0.1
    assert {"faiss-cpu", "endx_jax"} <= result["versions"].keys()
