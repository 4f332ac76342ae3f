import json
import re
import subprocess
import sys

import pytest

from endx_jax.export.run import export
from endx_jax.export.sentence_transformers import NAME


def test_an_older_export_is_replaced_as_a_whole(models, tmp_path):
    output = tmp_path / "deep" / "out"
    export(models["ade_spl"], NAME, output)
    export(models["sde"], NAME, output)
    assert not (output / "router_config.json").exists()
    report = json.loads((output / "export_report.json").read_text())
    assert (report["format"], report["model"], report["passed"]) == (NAME, "tiny", None)
    assert [folder.name for folder in output.parent.iterdir()] == ["out"]
    assert output.stat().st_mode & 0o777 == 0o755


def test_a_refusal_leaves_nothing_behind_and_the_older_one_whole(models, tmp_path):
    output = tmp_path / "out"
    export(models["sde"], NAME, output)
    files = sorted(output.rglob("*"))
    with pytest.raises(ValueError, match="use --format=stablehlo"):
        export(models["gru"], NAME, output)
    assert sorted(output.rglob("*")) == files
    assert [folder.name for folder in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("stablehlo", marks=pytest.mark.slow),
        pytest.param("sentence-transformers", marks=pytest.mark.reference),
    ],
)
def test_the_usage_works_when_it_is_pasted(models, tmp_path, kind):
    output = tmp_path / "out"
    export(models["ade_spl"], kind, output)
    code = re.search(r"```python\n(.*?)```", (output / "README.md").read_text(), re.DOTALL)[1]
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=output, text=True)
    assert len(re.findall(r"-?\d\.\d+", printed)) == 2
