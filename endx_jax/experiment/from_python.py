"""Training on pairs in memory: `endx_jax.train`."""

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from endx_jax.buckets import read_bytes, remove, url_of, write_bytes
from endx_jax.errors import EndxError, nearest
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import agree_on_length, check_method, resolve
from endx_jax.experiment.data import renaming, rows_of
from endx_jax.experiment.run import run
from endx_jax.experiment.workdir import opened
from endx_jax.files import expanded
from endx_jax.inference import EmbeddingModel, load
from endx_jax.methods import find_method
from endx_jax.methods.config import load_config
from endx_jax.parallel.agreement import on_primary
from endx_jax.parallel.console import silenced
from endx_jax.settings import require

PAIRS = "pairs.jsonl"  # file of the pairs in the workdir


def train(
    pairs: Iterable[Any],
    workdir: str | os.PathLike = "runs/mine",
    *,
    config: str | os.PathLike | Mapping = "minilm",
    settings: Mapping[str, Any] | None = None,
    verbose: bool = True,
) -> EmbeddingModel | None:
    """Trains a model on pairs in memory, evaluates it, and returns it; None for a pair classifier.

    As `endx train`, it writes a workdir, which `endx search`, `endx serve` and `endx_jax.load` read, and it resumes an
    interrupted run. The pairs are kept in the workdir as `pairs.jsonl`.

    Args:
      pairs: (question, answer) tuples; mappings with `question`, `answer` and further columns of a JSONL file, such as
        `negative`; a pandas DataFrame, a pyarrow Table, or a `datasets.Dataset` with these columns. Values may be
        NumPy's; NaN and the like are missing.
      workdir: the run's folder.
      config: file or recipe, as `--config` of `endx train`; or a config tree.
      settings: values of settings by dotted name, such as `{"train.steps": 500, "model.pretrained": "bge-small-en"}`.
      verbose: false for no messages but warnings, and no progress bars: level WARNING of the logger `endx_jax`.

    Raises:
      EndxError: pairs or settings are invalid, or the workdir holds another run.
      RunInterrupted: SIGTERM during training, after a checkpoint was saved; or a bucket can't be reached.
      KeyboardInterrupt: Ctrl-C during training, after a checkpoint was saved, or at any time in an interactive session.
        Before and after the training steps, signals end other processes, with status 130, or 75 after SIGTERM. The same
        call resumes.

    Examples:
      >>> pairs = [(f"When does shop number {n} open?", f"Shop {n} opens at {n % 12 + 1}.") for n in range(200)]
      >>> model = endx_jax.train(pairs, "runs/shops", settings={"train.epochs": 2})  # prints its progress
      >>> model.encode_query(["When does shop number 7 open?", "When does shop number 8 open?"]).shape
      (2, 384)
    """
    require("data.path" not in (settings or {}), "data.path is where the pairs are written: leave it out of settings")
    folder = url_of(workdir) or expanded(workdir)
    file = f"{folder}/{PAIRS}"
    chosen: Any = load_config(os.fspath(config)) if isinstance(config, str | os.PathLike) else config
    flat, values = flatten_dict(resolve(chosen).as_dict(), sep="."), {**(settings or {}), "data.path": file}
    check_method(flat["objective.name"], values)
    for setting, value in values.items():
        if setting not in flat:
            raise EndxError(f"unknown setting {setting!r}{nearest(setting, flat)}; endx train --help lists them all")
        flat[setting] = os.fspath(value) if isinstance(value, os.PathLike) else value
    tree = unflatten_dict(flat, sep=".")
    agree_on_length(tree["train"], values)
    resolve(tree)
    rows = rows_of(pairs)  # after the checks: a call that is refused leaves an iterator as it is
    shown = contextlib.nullcontext() if verbose else silenced()
    with shown, opened(folder) as home:  # its lock is held before the pairs are written
        before, described = read_bytes(file), (home / workdirs.CONFIG).exists()
        if described and before not in (None, rows.encode()):
            raise EndxError(f"{folder} holds a run on other pairs; pass another workdir")
        on_primary(lambda: write_bytes(file, rows.encode()), "pairs-written")
        try:
            run(tree, home)
        except EndxError as failure:
            # A run that is refused before it has described itself leaves nothing, so that the corrected call works.
            if before != rows.encode() and (home / workdirs.CONFIG).exists() == described:
                remove(file)
            failure.rename(renaming(file))
            raise
    on_primary(lambda: None, "uploaded")  # the others load the model once the primary process has uploaded it
    return load(folder) if find_method(tree["objective"]["name"]).embeds else None
