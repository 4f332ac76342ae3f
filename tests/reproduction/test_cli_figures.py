import json

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")


def test_figures_of_a_run(trained_workdir, tmp_path, reproduce):
    runs = [f"--run=a={trained_workdir}", f"--run=b={trained_workdir}", f"--output={tmp_path}"]
    assert f"{tmp_path / 'relative'}.png" in reproduce("figure", "relative", *runs).out
    found = json.loads((tmp_path / "relative.json").read_text())
    assert found["data"]["values"]["a"] == found["data"]["values"]["b"]

    reproduce("figure", "size", *runs)
    (size,) = {
        run["parameters"]
        for line in json.loads((tmp_path / "size.json").read_text())["data"]["lines"].values()
        for run in line
    }
    assert 1000 < size < 100_000


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["overlap"], "at least one --run"),
        (["size", "--run=nowhere"], "nowhere: nowhere is no workdir of a run"),
        (["relative", "--run=a=x"], "gains need a baseline and at least one more --run"),
    ],
)
def test_mistakes_are_a_line(arguments, says, tmp_path, reproduce):
    assert says in reproduce("figure", *arguments, f"--output={tmp_path}", status=2).err
