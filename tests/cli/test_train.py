import json
import pathlib
import re

import pytest
from helpers import refused, written

from endx_jax.cli import train
from endx_jax.experiment.config import resolve
from endx_jax.experiment.run import run
from endx_jax.methods.config import load_config, load_recipe, recipe_files
from endx_jax.models.sharing import SHARINGS

ENDX = load_recipe("endx")
CONFIGS = pathlib.Path(__file__).parents[2] / "configs"
QUICKSTART = str(CONFIGS / "quickstart.py")
LENGTHS = ("train.steps=3", "train.epochs=2.0")


def test_a_file_and_its_recipe_are_the_same_config(tmp_path):
    own = tmp_path / "quickstart.py"
    own.write_text('from endx_jax.methods import config\nget_config = config.load_recipe("quickstart").get_config\n')
    files = {own: "quickstart", QUICKSTART: "quickstart", CONFIGS / "t5_base_ade_spl.py": "t5:base,ade_spl"}
    for file, recipe in files.items():
        by_name, *names = train.parse_arguments([f"--config={recipe}"])
        by_file, *same = train.parse_arguments([f"--config={file}"])
        assert (by_file.to_dict(), same) == (by_name.to_dict(), names)
        assert names == [pathlib.Path(file).stem, f"runs/{pathlib.Path(file).stem}"]


def test_every_file_in_configs_is_a_recipe():
    assert load_recipe("minilm").__file__ == str(CONFIGS / "minilm.py")
    assert sorted(recipe_files().values()) == sorted(CONFIGS.rglob("*.py"))


@pytest.mark.parametrize("recipe", ["minilm", "yu", "endx:endx,gru"])
def test_a_recipe_has_its_name_and_its_file_in_configs_for_names(recipe, tmp_path, monkeypatch):
    expected = load_config(recipe).to_dict()
    name, colon, arguments = recipe.partition(":")
    for folder in (CONFIGS.parent, tmp_path):  # as in a checkout, and with an installed package elsewhere
        monkeypatch.chdir(folder)
        for file in (f"configs/{name}.py", f"configs/papers/{name}.py", CONFIGS / f"{name}.py", recipe_files()[name]):
            assert load_config(f"{file}{colon}{arguments}").to_dict() == expected
    refused("configs/yuu.py is neither a file nor a recipe; did you mean 'yu'", load_config, "configs/yuu.py")
    refused("elsewhere/configs/yu.py is neither a file nor a recipe", load_config, "elsewhere/configs/yu.py")


def test_settings_are_overridden():
    changes = ["--config.train.steps=7", "--config.objective.temperature=0.1", "--workdir=here"]
    config, _, workdir = train.parse_arguments(["--config=quickstart", *changes])
    assert (config.train.steps, config.objective.temperature, workdir) == (7, 0.1, "here")


@pytest.mark.parametrize("sharing", SHARINGS)
def test_t5_is_trained_with_every_sharing(sharing):
    config, name, workdir = train.parse_arguments([f"--config=t5:base,{sharing}"])
    assert (config.model.sharing, config.model.pretrained) == (sharing, "google/t5-v1_1-base")
    assert (name, workdir) == (f"t5_base_{sharing}", f"runs/t5_base_{sharing}")


@pytest.mark.parametrize("method", ENDX.METHODS)
@pytest.mark.parametrize("encoder", ENDX.ENCODERS)
def test_endx_and_its_baseline_are_trained_with_every_encoder(method, encoder):
    config, _, _ = train.parse_arguments([f"--config=endx:{method},{encoder}"])
    assert (config.objective.name, config.model.encoder or "bert") == (method, encoder)
    assert resolve(config).as_dict() == json.loads(config.to_json_best_effort())


def test_heads_go_on_from_where_the_ones_below_them_are_left():
    for arguments in ("", ":answer", ":both,sentence"):
        below, _, workdir = train.parse_arguments([f"--config=fcrr{arguments}"])
        config, _, _ = train.parse_arguments([f"--config=fcrr_convrr{arguments}"])
        assert (below.objective.head.names, config.objective.head.names) == ("fcrr", "fcrr+convrr")
        assert config.model.init_from == str(workdir)
        assert config.model.encoder == ("" if "sentence" in arguments else "none")
        assert config.objective.direction == load_recipe("fcrr").SIDES[config.objective.head.sides]


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.py")), ids=lambda file: file.stem)
def test_every_config_is_one_that_a_run_accepts(file):
    config, _, _ = train.parse_arguments([f"--config={file}"])
    assert resolve(config).as_dict() == json.loads(config.to_json_best_effort())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=t5:base,adespl"], "is none of sde, ade, ade_ste, ade_fte, ade_spl; did you mean 'ade_spl'"),
        (["--config=fcrr:questions"], "^SIDE of fcrr:SIDE,BASE is 'questions', .*; did you mean 'question'"),
        (["--config=t5:bass,sde"], "^SIZE of t5:SIZE,SHARING is 'bass', .*; did you mean 'base'"),
        ([], "config is missing; give a file, or one of the recipes .*quickstart"),
        (["--config=quickstat"], "neither a file nor a recipe; did you mean 'quickstart'"),
        (["--config=quickstart", "--config.train.stps=3"], "^unknown setting --config.train.stps; did .*train.steps'"),
        (["--config=quickstart", "--config.trin.steps=3"], "did you mean '--config.train.steps'?"),
        (["--config=quickstart", "--config.train.batch_size=3"], "or '--config.train.global_batch_size'?"),
        (["--config=quickstart", "--data.path=x"], "^unknown setting --data.path; did you mean '--config.data.path'"),
        (["--config=quickstart", "--zzzzzz=1"], "--zzzzzz; endx train --help lists them all"),
        (["--config=quickstart", "--config.train.steps=ten"], "steps is 'ten'; it must be a whole number$"),
        (["--config=quickstart", "--config.train.epochs=3,5"], "epochs is '3,5'; it must be a number$"),
        (["--config=quickstart", "--config.data.skip_invalid=x: y"], "invalid is 'x.*; it must be true or false$"),
        (["--config=quickstart", "--config.evaluation.sets=[a,"], r"sets is '\[a,'; it must be a list$"),
        (["--config=quickstart", "--config.objective=endx"], "^unknown setting --config.objective, which is a section"),
        (["--config=quickstart", "--wrkdir=x"], "--wrkdir; did you mean '--workdir'?"),
        (["--config=quickstart:fast"], r"TypeError: .*; what follows a colon .* passed to get_config\(\)$"),
        (["--config=pairs:64,a"], r"'64,a'; what follows a colon after its name is passed to get_config\(width: "),
        (["--config=quickstart", "extra"], "unexpected argument 'extra'"),
        (
            ["--config=quickstart", *(f"--config.{length}" for length in LENGTHS)],
            f"^{LENGTHS[0]} and {LENGTHS[1]}: give one of the two$",
        ),
    ],
)
def test_unknown_arguments_are_refused_in_one_line(arguments, message):
    refused(message, train.parse_arguments, arguments)


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


def test_next_steps_fit_the_data(trained_workdir):
    own, other = "train on your own pairs", "encode other documents"
    for data, shown, hidden in (("docstrings", own, other), ("mine.csv", other, own)):
        steps = train._next_steps(trained_workdir, data)
        assert f"\n  {shown}" in steps
        assert hidden not in steps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config():\n    raise ValueError('no such thing')", ", line 2: ValueError: no such thing; correct"),
        ("import nosuchmodule", ", line 1: ModuleNotFoundError: No module named 'nosuchmodule'; correct the"),
        ("question,answer\nwhere,on the mat\n", ", line 2: SyntaxError: invalid syntax; correct the Python file$"),
        ("PK\0\0", ": SyntaxError: source code string cannot contain null bytes; correct the Python file$"),
        ("caf\xe9 = 1", r", line 1: SyntaxError: \(unicode error\) 'utf-8' codec .*; correct the Python file"),
        ("config = 1", " has no function get_config that returns the settings$"),
        ("def get_config():\n    return 5", ": get_config returns 5; it must return settings: base_config"),
        ("METHOD = 'x'\ndef get_config(): return {}", "METHOD in the config file is 'x'; it must be a Method"),
        ("DATA = {'x': 5}\ndef get_config(): return {}", "DATA in the config file is {'x': 5}; it must map names"),
    ],
)
def test_a_mistake_in_a_config_file_is_one_line_with_its_place(text, message, tmp_path):
    file = written(tmp_path / "mine.py", text.encode("latin-1"))
    refused(f"^(config={file})?{message}", train.parse_arguments, [f"--config={file}"])


def test_a_config_file_is_executed_once(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import pathlib\nfrom endx_jax.methods.config import base_config as get_config\n"
        "log = pathlib.Path(__file__).with_suffix('.log')\n"
        "log.write_text((log.read_text() if log.exists() else '') + 'x')\n"
    )
    train.parse_arguments([f"--config={file}", "--config.train.steps=3"])
    assert (tmp_path / "mine.log").read_text() == "x"


def test_endx_alone_prints_help_and_its_version_and_an_unknown_verb_one_line(endx):
    assert "usage: endx VERB" in endx().out == endx("--help").out
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", endx("--version").out)
    assert "unknown verb 'trian'; did you mean 'train'?" in endx("trian", status=2).err


def test_an_interrupt_is_no_traceback(monkeypatch, endx):
    def interrupted(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "main", interrupted)
    hint = "endx train: interrupted; the same command resumes from its checkpoint, if any\n"
    assert endx("train", status=130).err == hint


def test_settings_that_the_step_refuses_leave_no_run(config, tmp_path):
    config.objective.matryoshka_dims = (64,)
    refused(r"matryoshka_dims is \(64,\), but the embeddings have 32 numbers", run, config, tmp_path)
    assert not (tmp_path / "config.json").exists()
    assert not (tmp_path / "model").exists()


def test_folders_of_another_kind_are_told_apart(trained_workdir, tiny_bert, tmp_path, endx):
    asked = ("encode", "--join", trained_workdir, "--output", tmp_path / "i")
    assert f"is no file of an index: use {trained_workdir}/index.sqlite" in endx(*asked, status=2).err
    asked = ("evaluate", "--workdir", tiny_bert)
    assert "is a pretrained model, not a run: pass it as model=" in endx(*asked, status=2).err
    (tmp_path / "config.json").write_text((trained_workdir / "config.json").read_text())
    (tmp_path / "corpus.txt").write_text("a cat\n")
    asked = ("encode", "--workdir", tmp_path, "--corpus", tmp_path / "corpus.txt", "--output", tmp_path / "i")
    assert "is the workdir of a run, not a pretrained model: finish its training" in endx(*asked, status=2).err


def test_help_begins_with_the_settings_that_are_changed_most(endx):
    shown = endx("train", "--config=minilm", "--config.train.steps=7", "--help").out
    first, _, every = shown.partition("\nAll settings:\n")
    assert first.count("\n  --config.") == 10
    assert re.search(r"\n  --config.train.steps=7 +Steps of the whole run\n", first)
    assert re.search(r"\n  --config.train.evaluate_every=0 +Steps .* split and `evaluation.sets`\n", first)
    assert every.startswith("\n  --config.seed=0\n")


def test_errors_name_settings_by_the_last_part_of_their_flag(endx, tmp_path):
    arguments = ("--config=quickstart", "--config.optimizer.learning_rate=-1.0", f"--workdir={tmp_path}")
    expected = "endx train: optimizer.learning_rate is -1.0; it must not be negative"
    assert expected in endx("train", *arguments, status=2).err
    assert expected.replace("train:", "plan:") in endx("plan", *arguments, status=2).err
