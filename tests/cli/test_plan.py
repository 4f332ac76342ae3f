import json

import pytest
from tiny_bert import PLAN, write_tiny_bert

from endx_jax.cli import plan
from endx_jax.planning.chips import CHIPS


@pytest.fixture
def arguments(tiny_bert, pairs_csv):
    return PLAN.format(bert=tiny_bert, pairs=pairs_csv).split()[1:]


def test_a_page_and_a_file(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plan, "CHIPS", {name: CHIPS[name] for name in ("v5e", "T4")})
    plan.main([*arguments, "--devices=8", f"--json={tmp_path / 'plan.json'}"])
    shown = capsys.readouterr().out
    assert shown.startswith("minilm: 16 pairs a step on 8 devices")
    assert "the largest batch that is planned of" in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith(("v5e ", "T4 "))] == ["v5e", "T4"]
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written["chips"]["v5e"]["fits"]
    assert written["compiled"] is None
    assert written["texts"] == "planned by the data"


def test_a_chip_without_a_compiler(arguments, capsys):
    shown = []
    for topology in (["--chip=v4", "--devices=8"], ["--topology=v4:2x2x2"]):
        plan.main([*arguments, *topology])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert shown[0].startswith("minilm: 16 pairs a step on v4:2x2x2, 8 devices")
    assert "not compiled for v4:2x2x2: its compiler does not know a v4 chip as one device" in shown[0]


@pytest.mark.slow
def test_no_weights_are_read(arguments, tmp_path, capsys):
    folder = write_tiny_bert(tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    plan.main([*arguments, f"--config.model.pretrained={folder}", "--devices=8"])
    assert "parameters" in capsys.readouterr().out
