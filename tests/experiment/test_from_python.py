import functools
import json
import pathlib
import re

import numpy as np
import pytest
from helpers import one_line_error, raising
from refusals import check_refusal

import endx_jax
from endx_jax.experiment.data import rows_of
from endx_jax.experiment.workdir import opened
from endx_jax.methods.config import base_config, load_recipe
from endx_jax.methods.pair import PairSettings
from endx_jax.parallel import console

PAIRS = [(f"where is the cat {n}", f"the cat {n} is in the {'house' if n % 2 else 'dog'} {n}") for n in range(60)]


@pytest.fixture
def replace_run(monkeypatch):
    """Function that puts another function in place of the training, whose model is then its path."""
    monkeypatch.setattr("endx_jax.experiment.from_python.load", lambda path: path)
    return lambda run: monkeypatch.setattr("endx_jax.experiment.from_python.run", run)


@pytest.fixture
def trees(replace_run):
    """The settings of runs, which are not trained."""
    found = []
    replace_run(lambda tree, workdir: found.append(tree))
    return found


SETTINGS = {"train.steps": 3, "evaluation.untrained": False}


def test_pairs_become_a_model_and_a_workdir(config, tmp_path, capsys):
    model = endx_jax.train(PAIRS, tmp_path, config=config, settings=SETTINGS)
    assert model.encode_query(["where is the cat 3"]).shape == (1, 32)
    assert re.search(r"trained +\d\.\d{3}", capsys.readouterr().out)
    again = endx_jax.train(iter(PAIRS), tmp_path, config=config, settings=SETTINGS)
    assert "nothing to do" in capsys.readouterr().out
    endx_jax.train(PAIRS, tmp_path, config=config, settings=SETTINGS, verbose=False)
    assert capsys.readouterr().out == ""
    np.testing.assert_array_equal(again.encode_query(["a"]), model.encode_query(["a"]))
    others, longer = (PAIRS[1:], SETTINGS), (PAIRS, SETTINGS | {"train.steps": 4})
    for (pairs, settings), named in ((others, "other pairs"), (longer, "train.steps: 3 -> 4")):
        train = functools.partial(endx_jax.train, pairs, tmp_path, config=config, settings=settings)
        check_refusal(train, named, "another workdir")
    assert (tmp_path / "pairs.jsonl").exists()


def test_pairs_are_written_by_the_holder_of_the_workdir(config, tmp_path, replace_run):
    def run(tree, workdir):
        check_refusal(lambda: endx_jax.train(PAIRS[1:], tmp_path, config=config), "stop it or choose another workdir")
        with opened(workdir):
            assert pathlib.Path(tree["data"]["path"]).read_text().count("\n") == len(PAIRS)

    replace_run(run)
    endx_jax.train(PAIRS, tmp_path, config=config)


def test_checkpoints_are_closed_under_the_lock_after_any_error(config, tmp_path, monkeypatch):
    def close(checkpoints):
        with one_line_error("is in use by"), opened(tmp_path):
            pass
        checkpoints.wait()
        closed.append(checkpoints)

    closed = []
    monkeypatch.setattr("endx_jax.experiment.run.fit", raising(KeyboardInterrupt))
    monkeypatch.setattr("endx_jax.experiment.run.Checkpoints.close", close)
    with pytest.raises(KeyboardInterrupt):
        endx_jax.train(PAIRS, tmp_path, config=config, settings=SETTINGS)
    assert len(closed) == 1


@pytest.mark.parametrize(
    "kind", ["mappings", "pandas", "pyarrow", pytest.param("datasets", marks=pytest.mark.reference)]
)
def test_tables_are_pairs(kind, config, tmp_path, trees):
    rows = [{"question": question, "answer": answer, "negative": "the dog"} for question, answer in PAIRS]
    if kind == "pandas":
        rows = pytest.importorskip("pandas").DataFrame(rows)
    if kind == "pyarrow":
        rows = pytest.importorskip("pyarrow").Table.from_pylist(rows)
    if kind == "datasets":
        import datasets

        rows = datasets.Dataset.from_list(rows)
    assert endx_jax.train(rows, tmp_path / "run", config=config) == tmp_path / "run"
    lines = (tmp_path / "run" / "pairs.jsonl").read_text().splitlines()
    written = {"question": "where is the cat 1", "answer": "the cat 1 is in the house 1", "negative": "the dog"}
    assert lines[1] == json.dumps(written)
    assert len(lines) == 60


def test_a_pair_classifier_has_no_embedding_model(tmp_path, trees):
    assert endx_jax.train(PAIRS, tmp_path, config=base_config(PairSettings())) is None
    assert trees[0]["objective"]["name"] == "pair"


def test_values_of_numpy_are_those_of_python():
    table = np.array([["x", None], ["y", np.nan]], object)
    values = [table[:, 0], table, (np.str_("x"), float("nan")), np.int64(0), np.float32(0.5), np.bool_(True)]
    values += [np.float64("nan"), np.datetime64("NaT", "s"), {"n": np.arange(2)}]
    plain = [["x", "y"], [["x", None], ["y", None]], ["x", None], 0, 0.5, True, None, None, {"n": [0, 1]}]
    row = {"question": "q", "answer": "a"} | {f"{n}": value for n, value in enumerate(values)}
    assert list(json.loads(rows_of([row])).values())[2:] == plain


def test_lists_and_missing_values_of_pandas_are_read(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow.parquet")
    frame = pandas.DataFrame({"question": ["q", "r"], "answer": ["a", "b"], "negative": [["x", "y"], None]})
    frame.to_parquet(tmp_path / "pairs.parquet")
    frame = pandas.read_parquet(tmp_path / "pairs.parquet").assign(n=pandas.array([1, None], "Int64"), f=[np.nan, 1])
    rows = [json.loads(line) for line in rows_of(frame).splitlines()]
    assert rows == [
        {"question": "q", "answer": "a", "negative": ["x", "y"], "n": 1, "f": None},
        {"question": "r", "answer": "b", "negative": None, "n": None, "f": 1.0},
    ]


def test_a_config_is_a_file_a_recipe_or_a_tree(tmp_path, trees):
    file = tmp_path / "C:" / "mine.py"
    file.parent.mkdir()
    file.write_text('from endx_jax.methods.config import load_recipe\nget_config = load_recipe("t5").get_config\n')
    for source in ("t5:base,ade", f"{file}:base,ade", load_recipe("t5").get_config("base,ade")):
        endx_jax.train(PAIRS, tmp_path / "run", config=source)
    assert trees[0]["model"]["sharing"] == "ade"
    assert trees == trees[:1] * 3


def test_notebooks_show_progress(monkeypatch):
    assert not console.showing_progress()
    monkeypatch.setitem(console.sys.modules, "ipykernel", console)
    assert console.showing_progress()
