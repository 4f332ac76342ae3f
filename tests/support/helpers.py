"""What several test files share: small towers, tokens to feed them, and the shape of a user's error."""

import contextlib
import dataclasses
import functools
import io
import json
import os
import pathlib
import time
import traceback
import types
import warnings
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec
from tiny_bert import sizes

from endx_jax.batch import Batch, Tokens
from endx_jax.data.batches.token_tables import TokenTable
from endx_jax.encoders import ARCHITECTURES
from endx_jax.encoders.bert import BertConfig
from endx_jax.encoders.t5 import T5Config
from endx_jax.errors import EndxError
from endx_jax.experiment.run import run
from endx_jax.experiment.saved_model import best_params, read_model
from endx_jax.index.index import Index
from endx_jax.models import Projection, TokenEmbedder, Tower, TransformerConfig, TransformerEncoder
from endx_jax.models.dropout import example_keys
from endx_jax.parallel import MeshSettings, make_mesh
from endx_jax.pretrained.towers import stored_params
from endx_jax.training.checkpoints import FOLDER

# The end of the refusal of a row.
SKIPS = "; --skip-invalid (in training --config.data.skip_invalid=True) skips such rows"

TINY = BertConfig(vocab_size=50, width=16, layers=2, heads=2, mlp_width=24, positions=32)
ONE_LAYER = dataclasses.replace(TINY, layers=1)
T5_SHAPE = T5Config(vocab_size=50, width=8, layers=1, heads=2, head_width=4, mlp_width=12)


def tower(
    config: TransformerConfig = TINY, *, projection: int = 0, dtype=jnp.float32, remat="none", scan_layers=False, **kw
):
    """A transformer tower, BERT's by default; other keywords are the tower's own."""
    return Tower(
        token_embedder=TokenEmbedder(config.vocab_size, config.width, dtype),
        encoder=TransformerEncoder(config, dtype, remat=remat, scan_layers=scan_layers),
        projection=Projection(projection) if projection else None,
        **kw,
    )


def gemma() -> TransformerConfig:
    """The config of a small decoder: causal, with windows and grouped heads, and dropout of attention weights."""
    keys = sizes(16, layers=2, heads=4, mlp_width=12, positions=32, vocab_size=50, num_key_value_heads=2, head_dim=8)
    keys |= {"sliding_window": 4, "sliding_window_pattern": 2, "attention_dropout": 0.3}
    return ARCHITECTURES["gemma3_text"].config.from_hugging_face(keys)


def random_params(module, *args, seed: int = 0) -> dict:
    """Parameters of a module drawn by NumPy (nothing is compiled), large enough that every one matters."""
    return drawn(jax.eval_shape(module.init, jax.random.key(0), *args)["params"], seed)


def drawn(shapes, seed: int = 0, scale: float = 0.2) -> dict:
    """Parameters of these shapes, as `random_params` draws them, with this standard deviation."""
    draw = np.random.default_rng(seed)

    def leaf(path, like):
        value = draw.normal(0, scale, like.shape).astype(np.float32)
        return 1 + value if path[-1].key == "scale" else value

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def texts(lengths, seed: int = 0, vocab_size: int = TINY.vocab_size) -> list[np.ndarray]:
    """Random token ids of the given lengths, none of them the pad id 0."""
    draw = np.random.default_rng(seed)
    return [draw.integers(1, vocab_size, length).astype(np.int32) for length in lengths]


def padded(rows, length: int) -> Tokens:
    """Tokens [len(rows), length]."""
    ids, mask = np.zeros((len(rows), length), np.int32), np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, True
    return Tokens(ids=jnp.asarray(ids), mask=jnp.asarray(mask))


def row_keys(count: int, step: int = 0, seed: int = 0) -> jax.Array:
    """The dropout keys of the rows of a step's batch."""
    return example_keys(jax.random.key(seed, impl="threefry2x32"), jnp.int32(step), count)


def pairs_batch(answer_id: Sequence[int], shortest: int = 2, widths: tuple[int, int] = (6, 8)) -> Batch:
    """A batch of random texts of at least `shortest` tokens, padded to the widths of both sides."""
    draw, ids = np.random.default_rng(0), jnp.asarray(answer_id)
    question, answer = (
        padded(texts(draw.integers(shortest, width + 1, len(ids)), seed), width) for seed, width in enumerate(widths)
    )
    return Batch(question, answer, jnp.arange(len(ids)), ids, ids[:, None])


def token_table(*rows) -> TokenTable:
    """The table of texts of these token ids, whose pad id is 0."""
    ids = np.concatenate([*map(np.asarray, rows)]).astype(np.int32)
    return TokenTable.from_lengths(ids, np.array([*map(len, rows)]), 0)


def times(folder: pathlib.Path, pattern: str = "*") -> dict[pathlib.Path, int]:
    """The time of each file of a folder, which tells whether it was written again."""
    return {file: file.stat().st_mtime_ns for file in folder.rglob(pattern) if file.is_file()}


def initial_params(*args):
    """Reads the parameters of `stored_params` into memory."""
    return jax.tree.map(np.asarray, stored_params(*args))


@contextlib.contextmanager
def one_line_error(match: str):
    """Expects an EndxError whose message is a single line that matches."""
    with pytest.raises(EndxError, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def raising(error: BaseException | type[BaseException]):
    """A function of any arguments that raises an error."""

    def fail(*arguments, **options):
        raise error

    return fail


def largest(tree) -> float:
    """The largest absolute value in a tree."""
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def same(a, b) -> bool:
    """Tells whether two trees have the same leaves."""
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def written(path: pathlib.Path, contents: str | bytes | Sequence[dict]) -> pathlib.Path:
    """Writes a file of text, of bytes, or of rows, as lines of JSON or a table of Parquet; returns its path."""
    if path.suffix == ".parquet" and isinstance(contents, list):
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(contents), path)
        return path
    if isinstance(contents, list | tuple):
        contents = "".join(json.dumps(row) + "\n" for row in contents)
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    return path


def write_files(folder: pathlib.Path, files: dict) -> pathlib.Path:
    """Writes files of text, of bytes, of tensors, or of JSON, by path; returns the folder."""
    from safetensors.numpy import save_file

    for name, contents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors") and isinstance(contents, dict):
            save_file(contents, folder / name)
        elif isinstance(contents, bytes):
            (folder / name).write_bytes(contents)
        else:
            (folder / name).write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return folder


def status_of_fork(function) -> int:
    """Calls a function in a forked process; returns its exit status, which is 1 after an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads are not needed there
        child = os.fork()
    if not child:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for(condition, seconds=90):
    """Waits until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


class Terminal(io.StringIO):
    """A stream in place of a terminal: `with contextlib.redirect_stderr(Terminal()) as screen`."""

    def isatty(self):
        return True


class Instead:
    """An object with other attributes in place of some of its own."""

    def __init__(self, original, **attributes):
        self._original = original
        vars(self).update(attributes)

    def __getattr__(self, name):
        return getattr(self._original, name)

    def __len__(self):
        return len(self._original)

    def __contains__(self, item):
        return item in self._original


class Lazily(dict):
    """A dictionary that makes the value of a key when it is first asked for."""

    def __init__(self, make):
        super().__init__()
        self._make = make

    def __missing__(self, key):
        self[key] = self._make(key)
        return self[key]


def refusal(call, *arguments, **options) -> str:
    """Returns the line of the EndxError that a call raises, without the hint to skip invalid rows."""
    with one_line_error(".") as caught:
        call(*arguments, **options)
    return str(caught.value).removesuffix(SKIPS)


def reader_of(run, capsys):
    """A function that runs a command line and returns its `out` and `err`, which is one line where the status is 2."""

    def run_and_read(*arguments, status=0):
        capsys.readouterr()
        assert run([*map(str, arguments)]) == status
        printed = capsys.readouterr()
        assert status != 2 or printed.err.count("\n") == 1
        return printed

    return run_and_read


def largest_file(workdir, step: int):
    """The largest file of a checkpoint."""
    return max((workdir / FOLDER / str(step)).rglob("*"), key=lambda f: f.stat().st_size if f.is_file() else -1)


def flip_a_bit(workdir, step: int):
    """Flips a bit in the middle of the largest file of a checkpoint."""
    file = largest_file(workdir, step)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def logged_steps(workdir) -> list[dict]:
    """Returns the lines of a run's log that are of training steps, and not of validations."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]


def logged_losses(workdir) -> dict[int, float]:
    """Returns the losses of a run by step."""
    return {line["step"]: line["loss"] for line in logged_steps(workdir)}


def mesh_of(devices: int) -> Mesh:
    """The mesh of the first devices, with all of them along its axis `data`."""
    return make_mesh(MeshSettings(), jax.devices()[:devices])


def use_devices(monkeypatch, count: int) -> None:
    """Lets runs use the first devices only."""
    monkeypatch.setattr(
        "endx_jax.experiment.run.make_mesh", lambda settings: make_mesh(settings, jax.devices()[:count])
    )


@contextlib.contextmanager
def one_device():
    """Lets runs inside use one device, where devices are not the subject: programs compile and run faster."""
    with pytest.MonkeyPatch.context() as patch:
        use_devices(patch, 1)
        yield


def trained_params(workdir) -> dict:
    """Returns the best parameters of a run."""
    return jax.device_get(best_params(workdir, read_model(workdir), mesh_of(1))[0])


def whole_and_resumed(config, folder, step: int = 3) -> tuple[dict[int, float], dict[int, float]]:
    """Trains in `folder / "whole"`, and in `folder / "parts"` with a stop at a step; returns the losses of both."""
    run(config, folder / "whole")
    config.train.stop_at_step = step
    run(config, folder / "parts")
    config.train.stop_at_step = 0
    run(config, folder / "parts")
    return logged_losses(folder / "whole"), logged_losses(folder / "parts")


def split_over(devices: int, function, in_specs=PartitionSpec("data")):  # noqa: B008  # immutable
    """The function of arrays whose rows are split over devices, by the axis `data`; its results are whole."""
    mesh = jax.make_mesh((devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices])
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=PartitionSpec())


def without_metrics(loss):
    """A loss function without its metrics."""
    return functools.wraps(loss)(lambda *arrays, **settings: loss(*arrays, **settings)[0])


def searching(index, encode_query=None, encode_document=None, **options) -> Index:
    """Opens the file of an index again, with functions in place of a model."""
    encoder = types.SimpleNamespace(encode_query=encode_query, encode_document=encode_document)
    return Index(index.path, encoder if encode_query else None, **options)
