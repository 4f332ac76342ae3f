from unittest import mock

import pytest

import endx_jax.__main__ as program
from endx_jax.cli import entry
from endx_jax.errors import EndxError


@pytest.mark.parametrize(("verb", "keeps"), [("train", True), ("plan", True), ("serve", False), ("encode", False)])
def test_the_allocator_settings_of_training_apply_to_no_other_verb(verb, keeps, monkeypatch):
    called = []
    monkeypatch.setattr(program.sys, "argv", ["endx", verb])
    monkeypatch.setattr(program, "use_large_pages", lambda: called.append(verb))
    monkeypatch.setattr(program, "run_verb", lambda argv: 0)
    assert program.main() == 0
    assert bool(called) is keeps


def failing(failure):
    return lambda name: mock.Mock(["main"], main=mock.Mock(side_effect=failure))


@pytest.mark.parametrize(
    ("verb", "message", "named"),
    [
        ("search", "set data.answer_column or data.id_column", "set --text-column or --id-column"),
        ("mine", "set data.path or data.answer_column", "set --data or --answer-column"),
        (
            "encode",
            "reuse= and truncate_dim needs it: another output",
            "--reuse= and --truncate-dim needs it: another --output",
        ),
        ("mine", "bm25=True, model=NAME and index=DIR", "--bm25, --model=NAME and --index=DIR"),
        ("mine", "data.skip_invalid=True skips such rows", "--skip-invalid skips such rows"),
        ("plan", "data.path is not set: mesh.data=2", "data.path is not set: mesh.data=2"),
        ("train", "model.product_dtype", "model.product_dtype"),
    ],
)
def test_messages_name_the_flags_that_a_verb_has(verb, message, named, monkeypatch, endx):
    module = entry._verb(verb)
    monkeypatch.setattr(module, "main", mock.Mock(side_effect=EndxError(message)))
    assert named in endx(verb, status=2).err


@pytest.mark.parametrize("failure", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: 9 bytes\nmore")])
def test_running_out_of_memory_is_one_line(failure, monkeypatch, endx):
    monkeypatch.setattr(entry, "_verb", failing(failure))
    error = endx("train", status=2).err
    assert error.startswith("endx train: out of memory: ")
    assert "--config.train.tower_chunk" in error


def test_an_unknown_platform_is_one_line(monkeypatch, endx):
    said = "Unable to initialize backend 'tpuu': it is unknown. (set JAX_PLATFORMS='')"
    monkeypatch.setenv("JAX_PLATFORMS", "tpuu")
    monkeypatch.setattr(entry, "_verb", failing(RuntimeError(said)))
    error = endx("train", status=2).err
    assert error == f"endx train: JAX_PLATFORMS=tpuu: {said}\n"


def test_a_tilde_in_a_flag_is_the_home_folder(tmp_path, monkeypatch, endx):
    monkeypatch.setenv("HOME", str(tmp_path))
    said = endx("mine", "--data=~/none.csv", "--bm25", "--output=~/mined", status=2).err
    assert f"{tmp_path}/none.csv: no such file" in said
    said = endx("mine", "--data=~user/none.csv", "--bm25", "--output=a~/b", status=2).err
    assert "~user/none.csv: no such file" in said


def test_an_option_has_one_value(endx):
    error = endx("encode", "--model=m", "--corpus=a", "--corpus", "b", status=2).err
    assert error == "endx encode: --corpus is given as 'a' and as 'b': give one of them\n"
