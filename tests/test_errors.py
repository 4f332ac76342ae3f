import pickle

import pytest

from endx_jax.errors import MAX_MESSAGE, DiskFull, EndxError, counted, located, nearest
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


def test_the_place_that_a_caller_names_precedes_that_of_the_error():
    with pytest.raises(DiskFull) as caught, located("evaluation.sets"), located("b\nc"):
        raise DiskFull("full")
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value))) == "evaluation.sets: b c: full"
    assert caught.value.where == "evaluation.sets: b\nc"


BATCH_SIZES = ["--config.evaluation.batch_size", "--config.train.global_batch_size"]


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("trian", ["train", "plan"], "; did you mean 'train'?"),
        ("all-minilm", ["all-MiniLM-L6-v2", "all-mpnet-base-v2"], "; did you mean 'all-MiniLM-L6-v2'?"),
        ("--data.path", ["--data", "--config.model.dim", "--config.data.path"], "; did you mean '--config.data.path'?"),
        ("xyz", ["train"], ""),
        ("index", ["mine"], ""),
        ("objective.margin", ["model.sharing", "objective.temperature"], ""),
        ("--batch-size", BATCH_SIZES, "; did you mean '{}' or '{}'?".format(*BATCH_SIZES)),
        ("train", ["model.name", "train.steps"], ", which is a section; name a setting in it, such as 'train.steps'"),
        (
            "--data",
            ["--config.mesh.data", "--config.data.path"],
            ", which is a section; name a setting in it, such as '--config.data.path'",
        ),
    ],
)
def test_the_nearest_name_is_suggested(name, known, expected):
    assert nearest(name, known) == expected
