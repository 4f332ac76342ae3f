"""Training from Python on pairs in memory (`endx_jax.train`)."""

import contextlib
import functools
import json
import operator
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from endx_jax.buckets import read_bytes, remove, url_of, write_bytes
from endx_jax.errors import EndxError, nearest
from endx_jax.experiment.config import agree_on_length, resolve
from endx_jax.experiment.run import run
from endx_jax.experiment.workdir import CONFIG, opened
from endx_jax.inference import EmbeddingModel, load
from endx_jax.json_files import is_missing, shown
from endx_jax.methods.config import load_config, names_of
from endx_jax.parallel.agreement import on_primary
from endx_jax.parallel.console import silenced

PAIRS = "pairs.jsonl"


def train(
    pairs: Iterable[Any],
    workdir: str | os.PathLike = "runs/mine",
    *,
    config: str | os.PathLike | Mapping = "minilm",
    settings: Mapping[str, Any] | None = None,
    verbose: bool = True,
) -> EmbeddingModel:
    """Trains a model on pairs in memory, evaluates it, and returns it.

    As `endx train`, it writes a workdir, which `endx search`, `endx serve` and `endx_jax.load` read, and it resumes an
    interrupted run. The pairs are kept in the workdir as `pairs.jsonl`.

    Args:
      pairs: (question, answer) tuples; mappings with `question`, `answer` and further columns of a JSONL file, such as
        `negative`; a pandas DataFrame, a pyarrow Table, or a `datasets.Dataset` with these columns. Values may be
        NumPy's; NaN and the like are missing.
      workdir: the run's folder.
      config: file or recipe, as `--config` of `endx train`; or a config tree.
      settings: values of settings by dotted name, such as `{"train.steps": 500, "model.pretrained": "bge-small-en"}`.
      verbose: false for no messages and no progress bars, as by the level WARNING of the logger `endx_jax`.

    Raises:
      EndxError: pairs or settings are invalid, or the workdir holds another run.
      RunInterrupted, KeyboardInterrupt: the run was interrupted and saved a checkpoint; the same call resumes.

    Examples:
      >>> pairs = [(f"When does shop number {n} open?", f"Shop {n} opens at {n % 12 + 1}.") for n in range(200)]
      >>> model = endx_jax.train(pairs, "runs/shops", settings={"train.epochs": 2})  # prints its progress
      >>> model.encode_query(["When does shop number 7 open?", "When does shop number 8 open?"]).shape
      (2, 384)
    """
    rows, folder = rows_of(pairs), url_of(workdir) or pathlib.Path(workdir).expanduser()
    file = f"{folder}/{PAIRS}"
    chosen: Any = load_config(os.fspath(config)) if isinstance(config, str | os.PathLike) else config
    tree, values = resolve(chosen).as_dict(), {**(settings or {}), "data.path": file}
    names = names_of(tree)
    for setting, value in values.items():
        if setting not in names:
            raise EndxError(f"unknown setting {setting!r}{nearest(setting, names)}; endx train --help lists them all")
        *sections, key = setting.split(".")
        functools.reduce(operator.getitem, sections, tree)[key] = value
    agree_on_length(tree["train"], values)
    resolve(tree)
    shown = contextlib.nullcontext() if verbose else silenced()
    with shown, opened(folder) as home:  # its lock is held before the pairs are written
        before, described = read_bytes(file), (home / CONFIG).exists()
        if described and before not in (None, rows.encode()):
            raise EndxError(f"{folder} holds a run on other pairs; pass another workdir")
        on_primary(lambda: write_bytes(file, rows.encode()), "pairs-written")
        try:
            run(tree, home)
        except EndxError as failure:
            # A run that is refused before it has described itself leaves nothing, so that the corrected call works.
            if before != rows.encode() and (home / CONFIG).exists() == described:
                remove(file)
            place = rf"{re.escape(file)}(?:, line (\d+))?"
            row = functools.partial(re.sub, place, lambda at: f"pairs[{int(at[1]) - 1}]" if at[1] else "pairs")
            failure.rename(row)
            raise
    return load(folder)


def rows_of(pairs: Any) -> str:
    """Returns a line of JSON for each pair; raises EndxError for an item that is not a pair."""
    if hasattr(pairs, "iterrows"):
        pairs = pairs.to_dict("records")
    elif hasattr(pairs, "to_pylist"):
        pairs = pairs.to_pylist()
    if isinstance(pairs, str | bytes | Mapping) or not isinstance(pairs, Iterable):
        raise EndxError(f"pairs is {shown(pairs)}; pass (question, answer) tuples, or a table with such columns")
    lines = []
    for number, pair in enumerate(pairs):
        if isinstance(pair, tuple | list) and len(pair) == 2:
            pair = {"question": pair[0], "answer": pair[1]}
        if not isinstance(pair, Mapping):
            raise EndxError(f"pairs[{number}] is {shown(pair)}; it must be (question, answer), or a mapping with both")
        row = {str(name): _plain(value, f"pairs[{number}]: {shown(name)}") for name, value in pair.items()}
        lines.append(json.dumps(row, ensure_ascii=False))
    if not lines:
        raise EndxError("pairs is empty; pass at least a few hundred (question, answer) tuples")
    return "\n".join([*lines, ""])


def _plain(value: Any, where: str) -> Any:
    """Returns a value for JSON, missing values as None; raises EndxError for types that JSON and NumPy do not have."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if is_missing(value) or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item, where) for name, item in value.items()}
    raise EndxError(
        f"{where} is {shown(value)} of type {type(value).__name__}; pass text, a number, a truth value, None, or lists "
        "of them, or leave out the column"
    )
