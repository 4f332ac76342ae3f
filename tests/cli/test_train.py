import json
import pathlib
import re

import pytest
from helpers import written
from refusals import check_refusal

from endx_jax.cli import train
from endx_jax.experiment.config import resolve
from endx_jax.methods.config import load_config, load_recipe, recipe_files
from endx_jax.models.sharing import SHARINGS

ENDX = load_recipe("endx")
CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
QUICKSTART = str(CONFIGS / "quickstart.py")


def test_a_file_and_its_recipe_are_the_same_config(tmp_path):
    own = tmp_path / "a:b" / "quickstart.py"
    own.parent.mkdir()
    own.write_text('from endx_jax.methods import config\nget_config = config.load_recipe("quickstart").get_config\n')
    files = {own: "quickstart", QUICKSTART: "quickstart", CONFIGS / "t5_base_ade_spl.py": "t5:base,ade_spl"}
    for file, recipe in files.items():
        by_name, *names = train.parse_arguments([f"--config={recipe}"])
        by_file, *same = train.parse_arguments([f"--config={file}"])
        assert (by_file.to_dict(), same) == (by_name.to_dict(), names)
        assert names == [pathlib.Path(file).stem, f"runs/{pathlib.Path(file).stem}"]


@pytest.mark.parametrize("recipe", ["minilm", "yu", "endx:endx,gru"])
def test_a_recipe_has_its_name_and_its_file_in_configs_for_names(recipe, tmp_path, monkeypatch):
    expected = load_config(recipe).to_dict()
    name, colon, arguments = recipe.partition(":")
    for folder in (CONFIGS.parent, tmp_path):  # as in a checkout, and with an installed package elsewhere
        monkeypatch.chdir(folder)
        for file in (f"configs/{name}.py", f"configs/papers/{name}.py", CONFIGS / f"{name}.py", recipe_files()[name]):
            assert load_config(f"{file}{colon}{arguments}").to_dict() == expected
    check_refusal(lambda: load_config("configs/yuu.py"), "configs/yuu.py", "'yu'")
    check_refusal(lambda: load_config("elsewhere/configs/yu.py"), "elsewhere/configs/yu.py is neither a file nor")


RECIPES = {f"t5:base,{sharing}": f"t5_base_{sharing}" for sharing in SHARINGS}
RECIPES |= {f"endx:{m},{e}": f"endx_{m}_{e}" for m in ENDX.METHODS for e in ENDX.ENCODERS}
RECIPES |= {str(file): file.stem for file in sorted(CONFIGS.rglob("*.py"))}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_a_config_that_a_run_accepts_under_its_name(recipe):
    config, name, workdir = train.parse_arguments([f"--config={recipe}"])
    assert resolve(config).as_dict() == json.loads(config.to_json_best_effort())
    assert (name, workdir) == (RECIPES[recipe], f"runs/{RECIPES[recipe]}")
    if recipe.startswith("t5"):
        assert f"t5:base,{config.model.sharing}" == recipe
    if recipe.startswith("endx"):
        assert f"endx:{config.objective.name},{config.model.encoder or 'bert'}" == recipe


def test_every_file_in_configs_is_a_recipe():
    assert sorted(recipe_files().values()) == sorted(CONFIGS.rglob("*.py"))


def test_heads_go_on_from_where_the_ones_below_them_are_left():
    for arguments in ("", ":answer", ":both,sentence"):
        below, _, workdir = train.parse_arguments([f"--config=fcrr{arguments}"])
        config, _, _ = train.parse_arguments([f"--config=fcrr_convrr{arguments}"])
        assert (below.objective.head.names, config.objective.head.names) == ("fcrr", "fcrr+convrr")
        assert config.model.init_from == str(workdir)
        assert config.model.encoder == ("" if "sentence" in arguments else "none")
        assert config.objective.direction == load_recipe("fcrr").SIDES[config.objective.head.sides]


@pytest.mark.parametrize(
    ("recipe", "arguments", "length"),
    [
        ("minilm", [], (0, 0.0)),
        ("minilm", ["--config.train.steps=5"], (5, 0.0)),
        ("minilm", ["--config.train.steps=5", "--config.train.epochs=0.0"], (5, 0.0)),
        ("quickstart", ["--config.train.epochs=2.0"], (0, 2.0)),
        ("quickstart", ["--config.train.epochs=0.0"], (36, 0.0)),
    ],
)
def test_steps_on_the_command_line_replace_the_recipes_epochs_and_the_other_way_round(recipe, arguments, length):
    config, _, _ = train.parse_arguments([f"--config={recipe}", *arguments])
    assert (config.train.steps, config.train.epochs) == length


def test_next_steps_fit_the_data(trained_workdir, monkeypatch, endx):
    monkeypatch.setattr("endx_jax.experiment.run.run", lambda config, workdir: {})  # a run takes longer
    own, other = "train on your own pairs", "encode other documents"
    for data, shown, hidden in (("docstrings", own, other), ("mine.csv", other, own)):
        steps = endx("train", "--config=minilm", f"--workdir={trained_workdir}", f"--config.data.path={data}").out
        assert f"\n  {shown}" in steps
        assert hidden not in steps
    monkeypatch.setattr("endx_jax.experiment.run.run", lambda config, workdir: None)  # as at train.stop_at_step
    assert endx("train", "--config=minilm").out.endswith(" minutes in total\n")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("def get_config():\n    raise ValueError('nothing')", ["mine.py, line 2", "ValueError: nothing", "correct"]),
        ("import nosuchmodule", ["mine.py, line 1", "ModuleNotFoundError", "'nosuchmodule'", "correct"]),
        ("question,answer\nwhere,on the mat\n", ["mine.py, line 2", "SyntaxError", "correct the Python file"]),
        ("PK\0\0", ["mine.py", "SyntaxError", "correct the Python file"]),
        ("caf\xe9 = 1", ["mine.py, line 1", "SyntaxError", "'utf-8'", "correct the Python file"]),
        ("config = 1", ["mine.py", "get_config"]),
        ("def get_config():\n    return 5", ["mine.py", "get_config", "5", "base_config"]),
        ("METHOD = 'x'\ndef get_config(): return {}", ["METHOD", "'x'", "a Method"]),
        ("DATA = {'x': 5}\ndef get_config(): return {}", ["DATA", "{'x': 5}"]),
    ],
)
def test_a_mistake_in_a_config_file_is_one_line_with_its_place(text, named, tmp_path):
    file = written(tmp_path / "mine.py", text.encode("latin-1"))
    check_refusal(lambda: train.parse_arguments([f"--config={file}"]), *named)


def test_a_config_file_is_executed_once(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import pathlib\nfrom endx_jax.methods.config import base_config as get_config\n"
        "log = pathlib.Path(__file__).with_suffix('.log')\n"
        "log.write_text((log.read_text() if log.exists() else '') + 'x')\n"
    )
    train.parse_arguments([f"--config={file}", "--config.train.steps=3"])
    assert (tmp_path / "mine.log").read_text() == "x"


def test_endx_alone_prints_help_and_its_version(endx):
    assert "usage: endx VERB" in endx().out == endx("--help").out
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", endx("--version").out)


def test_help_begins_with_the_settings_that_are_changed_most(endx):
    shown = endx("train", "--config=minilm", "--config.train.steps=7", "--help").out
    first, _, every = shown.partition("\nAll settings:\n")
    assert first.count("\n  --config.") == 10
    assert re.search(r"\n  --config.train.steps=7 +Steps of the whole run\n", first)
    assert re.search(r"\n  --config.train.evaluate_every=0 +Steps .* split and `evaluation.sets`\n", first)
    assert every.startswith("\n  --config.seed=0\n")
