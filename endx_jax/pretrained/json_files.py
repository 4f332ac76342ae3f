"""JSON files of pretrained folders: reading one, and holding it to what we can do."""

import json
import pathlib
from collections.abc import Mapping, Sequence

from endx_jax.errors import EndxError


def read_json(file: pathlib.Path, kind: type):
    """Reads a JSON file that holds a `dict` or a `list`; EndxError names it where it is broken or holds another."""
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as failure:
        raise EndxError(f"{file} can't be read as JSON: {failure}") from None
    if not isinstance(contents, kind):
        raise EndxError(f"{file} holds a {type(contents).__name__} where a {kind.__name__} is expected")
    return contents


def read_optional(file: pathlib.Path) -> dict:
    """The object in a JSON file, empty where there is no such file."""
    return read_json(file, dict) if file.is_file() else {}


def hold(file: pathlib.Path, contents: Mapping, supported: Mapping[str, Sequence], defaults: Mapping = {}) -> None:
    """Raises EndxError for a value that is none of the supported ones, so that nothing is left out in silence.

    Args:
      file: for the message.
      contents: of the file.
      supported: by key, the values that we can do as they say.
      defaults: by key, what a missing value means; else the first of those supported.
    """
    for key, values in supported.items():
        value = contents.get(key, defaults.get(key, values[0]))
        if value not in values:
            known = " or ".join(map(repr, values))
            raise EndxError(f"{file} asks for {key} {value!r}; only {known} is supported")
