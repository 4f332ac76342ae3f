"""Data of an experiment other than its splits: further evaluation sets, and pairs in memory."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from endx_jax.data.formats.registry import path_and_split
from endx_jax.data.sets.records import RetrievalSet
from endx_jax.data.settings import DataSettings
from endx_jax.data.sources import find_data, pools
from endx_jax.errors import EndxError, located
from endx_jax.json_files import as_text, is_missing, shown
from endx_jax.ranking.evaluate import EvaluationSettings


def read_sets(evaluation: EvaluationSettings, data: DataSettings) -> dict[str, RetrievalSet]:
    """Reads the sets of `evaluation.sets`; returns them by name. Those of a suite are named SUITE/SET.

    Raises:
      EndxError: a set can't be read.
    """
    sets = {}
    for name, path in zip(evaluation.names_of_sets, evaluation.sets, strict=True):
        whole, split = path_and_split(path)
        with located("evaluation.sets, as PATH or PATH:SPLIT"):
            found = find_data(whole, data, split)
            for part, one in (found.sets() or {"": found}).items():
                sets[f"{name}/{part}" if part else name] = pools(one.records(), data, one).primary
    return sets


def rows_of(pairs: Any, name: str = "pairs") -> str:
    """Returns a line of JSON for each pair; raises EndxError, with the `name` of the pairs, for another item."""
    if hasattr(pairs, "iterrows"):
        pairs = pairs.to_dict("records")
    elif hasattr(pairs, "to_pylist"):
        pairs = pairs.to_pylist()
    if isinstance(pairs, str | bytes | Mapping) or not isinstance(pairs, Iterable):
        raise EndxError(f"{name} is {shown(pairs)}; pass (question, answer) tuples, or a table with such columns")
    lines = []
    for number, pair in enumerate(pairs):
        if isinstance(pair, tuple | list) and len(pair) == 2:
            pair = {"question": pair[0], "answer": pair[1]}
        if not isinstance(pair, Mapping):
            raise EndxError(f"{name}[{number}] is {shown(pair)}; it must be (question, answer), or a mapping with both")
        row = {str(column): _plain(value, f"{name}[{number}]: {shown(column)}") for column, value in pair.items()}
        lines.append(json.dumps(row, ensure_ascii=False))
    if not lines:
        raise EndxError(f"{name} is empty; pass at least a few hundred (question, answer) tuples")
    return "\n".join([*lines, ""])


def renaming(file: str, name: str = "pairs") -> Callable[[str], str]:
    """Returns a function that replaces a file of `rows_of` in a message by the `name` of the pairs, and its lines."""
    place = rf"{re.escape(file)}(?:, line (\d+))?"
    return functools.partial(re.sub, place, lambda at: f"{name}[{int(at[1]) - 1}]" if at[1] else name)


def _plain(value: Any, where: str) -> Any:
    """Returns a value for JSON, missing values as None; raises EndxError for types that JSON and NumPy do not have."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if is_missing(value) or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    if isinstance(value, str):
        return as_text(value, where, may_be_empty=True, strip=False)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item, where) for name, item in value.items()}
    raise EndxError(
        f"{where} is {shown(value)} of type {type(value).__name__}; pass text, a number, a truth value, None, or lists "
        "of them, or leave out the column"
    )
