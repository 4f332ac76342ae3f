import json
import pathlib
import re
import sys

import pytest
from helpers import one_line_error

from endx_jax.cli import train
from endx_jax.experiment.config import resolve
from endx_jax.experiment.run import run
from endx_jax.methods.endx.recipes.endx import ENCODERS, METHODS
from endx_jax.methods.residual.recipes import fcrr
from endx_jax.models.sharing import SHARINGS

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
QUICKSTART = str(CONFIGS / "quickstart.py")


def test_a_file_and_its_recipe_are_the_same_config():
    by_file, name, workdir = train.parse([f"--config={QUICKSTART}"])
    by_name, _, _ = train.parse(["--config=quickstart"])
    assert by_file.to_dict() == by_name.to_dict()
    assert (name, workdir) == ("quickstart", pathlib.Path("runs/quickstart"))


def test_settings_are_overridden():
    config, _, workdir = train.parse(
        ["--config=quickstart", "--config.train.steps=7", "--config.objective.temperature=0.1", "--workdir=here"]
    )
    assert (config.train.steps, config.objective.temperature, workdir) == (7, 0.1, pathlib.Path("here"))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_the_t5_configs_are_the_parametric_recipe(sharing):
    by_file, name, _ = train.parse([f"--config={CONFIGS / f't5_base_{sharing}.py'}"])
    by_name, same_name, workdir = train.parse([f"--config=t5:base,{sharing}"])
    assert by_file.to_dict() == by_name.to_dict()
    assert (name, same_name) == (f"t5_base_{sharing}",) * 2
    assert workdir == pathlib.Path(f"runs/t5_base_{sharing}")
    assert (by_name.model.sharing, by_name.model.pretrained) == (sharing, "google/t5-v1_1-base")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_endx_configs_are_the_parametric_recipe(method, encoder):
    by_file, _, _ = train.parse([f"--config={CONFIGS / f'{method}_{encoder}.py'}"])
    by_name, _, _ = train.parse([f"--config=endx:{method},{encoder}"])
    assert by_file.to_dict() == by_name.to_dict()
    assert (by_name.objective.name, by_name.model.encoder or "bert") == (method, encoder)


def test_heads_go_on_from_where_the_ones_below_them_are_left():
    for arguments in ("", ":answer", ":both,sentence"):
        below, _, workdir = train.parse([f"--config=fcrr{arguments}"])
        config, _, _ = train.parse([f"--config=fcrr_convrr{arguments}"])
        assert (below.objective.head.names, config.objective.head.names) == ("fcrr", "fcrr+convrr")
        assert config.model.init_from == str(workdir)
        assert config.model.encoder == ("" if "sentence" in arguments else "none")
        assert config.objective.direction == fcrr.SIDES[config.objective.head.sides]


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.py")), ids=lambda file: file.stem)
def test_every_config_is_one_that_a_run_accepts(file):
    config, _, _ = train.parse([f"--config={file}"])
    assert resolve(config).as_dict() == json.loads(config.to_json_best_effort())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--config=t5:base,adespl"],
            "'adespl', which is none of sde, ade, ade_ste, ade_fte, ade_spl; did you mean 'ade_spl'",
        ),
        (["--config=fcrr:questions"], "^SIDE of fcrr:SIDE,BASE is 'questions', .*; did you mean 'question'"),
        (["--config=t5:bass,sde"], "^SIZE of t5:SIZE,SHARING is 'bass', .*; did you mean 'base'"),
        ([], "--config is missing; give a file, or one of the recipes .*quickstart"),
        (["--config=quickstat"], "neither a file nor a recipe; did you mean 'quickstart'"),
        (["--config=quickstart", "--config.train.stps=3"], r"unknown setting 'stps'; Did you mean \"steps\""),
        (["--config=quickstart", "--config.trin.steps=3"], r"unknown setting 'trin'; Did you mean \"train\""),
        (["--config=quickstart", "--config.train.steps=abc"], "--config.train.steps=abc"),
        (["--config=quickstart", "--wrkdir=x"], "wrkdir.*Did you mean: workdir"),
        (["--config=quickstart", "extra"], "unexpected argument 'extra'"),
        (
            ["--config=quickstart", "--config.train.steps=3", "--config.train.epochs=2.0"],
            "^--config.train.steps=3 and --config.train.epochs=2.0: give one of the two$",
        ),
    ],
)
def test_unknown_arguments_are_refused_in_one_line(arguments, message):
    with one_line_error(message):
        train.parse(arguments)


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
    config, _, _ = train.parse([f"--config={recipe}", *arguments])
    assert (config.train.steps, config.train.epochs) == length


@pytest.mark.parametrize(
    ("data", "shown", "hidden"),
    [
        ("docstrings", "train on your own pairs", "encode other documents"),
        ("mine.csv", "encode other documents", "train on your own pairs"),
    ],
)
def test_next_steps_fit_the_data(trained_workdir, data, shown, hidden):
    steps = train._next_steps(trained_workdir, data)
    assert f"\n  {shown}" in steps
    assert hidden not in steps


def test_a_mistake_in_a_recipe_is_shown_with_its_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def get_config():\n    raise ValueError('no such thing')\n")
    with one_line_error(r"mine.py.*no such thing"):
        train.parse([f"--config={file}"])


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_endx_alone_prints_help(arguments, endx):
    assert "usage: endx VERB" in endx(*arguments).out


def test_the_version_is_printed(endx):
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", endx("--version").out)


def test_an_unknown_verb_exits_with_2_and_one_line(endx):
    assert "unknown verb 'trian'; did you mean 'train'?" in endx("trian", status=2).err


def test_an_interrupt_is_no_traceback(monkeypatch, endx):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "main", interrupted)
    hint = "endx train: interrupted; the same command resumes from its checkpoint, if any\n"
    assert endx("train", status=130).err == hint


def test_a_recipe_without_get_config_is_refused(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "config_config", raising=False)  # it would keep the last recipe's functions
    (tmp_path / "recipe.py").write_text("config = 1")
    with one_line_error("the file of --config has no function get_config that returns the settings"):
        train.parse([f"--config={tmp_path / 'recipe.py'}"])


def test_a_config_that_is_no_python_file_is_one_line(tmp_path, endx):
    file = tmp_path / "pairs.csv"
    file.write_text("question,answer\nwhere is it,on the mat\n")
    assert (
        f"--config={file}, line 2: invalid syntax; correct the Python file"
        in endx("train", f"--config={file}", status=2).err
    )


def test_settings_that_the_step_refuses_leave_no_run(config, tmp_path):
    """Otherwise the run with mended settings would be refused, as of other settings."""
    config.objective.matryoshka_dims = (64,)
    with one_line_error(r"matryoshka_dims is \(64,\), but the embeddings have 32 numbers"):
        run(config, tmp_path)
    assert not (tmp_path / "config.json").exists()
    assert not (tmp_path / "model").exists()


def test_folders_of_another_kind_are_told_apart(trained_workdir, tiny_bert, tmp_path, endx):
    asked = ("search", "--index", trained_workdir, "where")
    assert f"is the workdir of a run, not an index: use {trained_workdir}/index" in endx(*asked, status=2).err
    asked = ("evaluate", "--workdir", tiny_bert)
    assert "is a pretrained model, not a run: pass it as --model" in endx(*asked, status=2).err
    (tmp_path / "config.json").write_text((trained_workdir / "config.json").read_text())
    (tmp_path / "corpus.txt").write_text("a cat\n")
    asked = ("encode", "--workdir", tmp_path, "--corpus", tmp_path / "corpus.txt", "--output", tmp_path / "index")
    assert "is the workdir of a run, not a pretrained model: finish its training" in endx(*asked, status=2).err
