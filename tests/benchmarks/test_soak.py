import json

import pytest


def test_what_a_kill_has_cut_off_is_told_apart(script, tmp_path):
    soak = script("soak")
    for name in ("10", "20", "30.orbax-checkpoint-tmp"):
        (tmp_path / soak.FOLDER / name).mkdir(parents=True)
    (tmp_path / soak.MANIFESTS).mkdir()
    (tmp_path / soak.MANIFESTS / "10.json").touch()
    found = {name: what for (name, _), what in soak.unfinished(tmp_path).items()}
    assert found == {"20": "its manifest", "30.orbax-checkpoint-tmp": "a checkpoint"}


def test_the_table_counts_what_was_struck_and_what_held(script):
    soak = script("soak")
    kill = {"signal": "SIGKILL", "cut_off": "a checkpoint", "statuses": [-9, 75]}
    told = {"signal": "SIGTERM", "cut_off": "nothing", "statuses": [75, 75]}
    late = {"signal": "SIGTERM", "cut_off": "nothing", "statuses": [75, -15]}
    held = {"state_bit_equal": True, "every_step_once": True, "losses_equal": True, "validations_equal": True}
    runs = [
        {"processes": 2, "strikes": [kill, told], **held},
        {"processes": 2, "strikes": [kill, late], **held, "state_bit_equal": False, "validations_equal": False},
    ]
    (row,) = soak.summarise(runs)
    assert list(row.values()) == [2, 2, 2, 2, 0, 2, 1, 1, 2, 1]


@pytest.mark.slow
def test_a_run_under_fire_ends_as_if_nothing_had_happened(start, tmp_path):
    start("soak", "--kills=1", "--processes=1", "--steps=20", f"--json={tmp_path / 'soak.json'}")
    found = json.loads((tmp_path / "soak.json").read_text())
    assert found["results"][0]["SIGKILL"] == 1
    assert all(run["state_bit_equal"] and run["every_step_once"] and run["losses_equal"] for run in found["runs"])
