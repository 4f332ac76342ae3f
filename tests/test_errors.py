import pickle

import pytest

from endx_jax.errors import MAX_MESSAGE, DiskFull, EndxError, counted, located, naming, nearest
from endx_jax.parallel.console import say


def test_a_message_is_one_line_of_bounded_length_without_control_characters(capsys):
    assert str(EndxError("a file named x\ny is missing")) == "a file named x y is missing"
    assert str(DiskFull("a\u2028b")) == "a b"
    message = str(EndxError("start " + "x" * 10_000 + " end"))
    assert len(message) == MAX_MESSAGE
    assert message.startswith("start x")
    assert message.endswith("x end")
    with pytest.raises(TypeError):
        EndxError("a", "b")
    say("a\x1b[31m\tb\x9d\r")
    assert capsys.readouterr().out == "a\\x1b[31m\tb\\x9d\\r\n"
    assert str(EndxError("\x07 and \x7f")) == r"\x07 and \x7f"


def test_a_count_agrees_with_its_noun():
    assert [counted(n, noun) for n, noun in ((1, "row"), (0, "file"), (2000, "query"), (2, "right pair"))] == [
        "1 row", "0 files", "2,000 queries", "2 right pairs"
    ]  # fmt: skip


def test_the_place_and_the_names_that_a_caller_sets_precede_those_of_the_error():
    flags, setting = naming({"data.split": "--split"}), located("evaluation.sets")
    with pytest.raises(DiskFull) as caught, flags, setting, located("b\nc"), naming({"data.path": "PATH"}):
        raise DiskFull("choose with data.split or data.path: 'data.path'")
    assert str(caught.value) == "evaluation.sets: b c: choose with --split or PATH: 'data.path'"
    assert caught.value.where == "evaluation.sets: b\nc"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    outer = naming({"data.skip=True": "--skip", "data.skip": "--skip", "data.path": "--data"})
    with pytest.raises(EndxError) as caught, outer, naming({"data.skip": "--config.data.skip"}):
        raise EndxError("data.path, line 2: set data.skip=True")
    assert str(caught.value) == "--data, line 2: set --config.data.skip=True"


BATCH_SIZES = ["--config.evaluation.batch_size", "--config.train.global_batch_size"]


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("trian", ["train", "plan"], "; did you mean 'train'?"),
        ("all-minilm", ["all-MiniLM-L6-v2", "all-mpnet-base-v2"], "; did you mean 'all-MiniLM-L6-v2'?"),
        ("--data.path", ["--data", "--config.model.at", "--config.data.path"], "; did you mean '--config.data.path'?"),
        ("xyz", ["train"], ""),
        ("index", ["mine"], ""),
        ("optimizer.lr", ["optimizer.frozen", "optimizer.learning_rate"], "; did you mean 'optimizer.learning_rate'?"),
        ("objective.margin", ["model.sharing", "objective.temperature"], ""),
        ("--batch-size", BATCH_SIZES, "; did you mean '{}' or '{}'?".format(*BATCH_SIZES)),
    ],
)
def test_the_nearest_name_is_suggested(name, known, expected):
    assert nearest(name, known) == expected


def test_a_command_line_names_its_flags_in_errors_and_lines(capsys):
    message = "workdir=a/train.steps: it's 'train.steps'; set train.steps, not train.steps.more, for another workdir"
    say(message)
    names = naming({"train.steps": "--steps", "workdir=": "--workdir="})
    with pytest.raises(EndxError) as caught, names:  # noqa: PT012  # what is printed before the error is renamed too
        say(message)
        raise EndxError(message)
    flags = "--workdir=a/train.steps: it's 'train.steps'; set --steps, not train.steps.more, for another workdir"
    assert (capsys.readouterr().out, str(caught.value)) == (f"{message}\n{flags}\n", flags)
