"""Checks of keys in files of other libraries; config dataclasses declare those of Hugging Face's `config.json`."""

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

# The deepest published encoders have fewer than 100 layers. Shapes of all layers are computed before reading weights.
MOST_LAYERS = 1_000
MOST_SIZE = 2**24
MOST_TOKENS = 2**31 - 1  # ids are int32
OFF: Sequence = (None, False, "", [], {})  # false is equal to zero


def check_supported(contents: Mapping, where: object, supported: Mapping[str, Sequence]) -> None:
    """Raises EndxError unless the values of keys are supported.

    Args:
      contents: contents of the file.
      where: the file, for messages.
      supported: values by key, the default first; of a key without values, every value is.
    """
    for key, values in supported.items():
        if values and contents.get(key, values[0]) not in values:
            valid = " or ".join(map(repr, values))
            raise EndxError(f"{where}: {key}={json_files.shown(contents[key])} is not supported; supported: {valid}")


def check_keys(
    contents: Mapping, where: object, supported: Mapping[str, Sequence], known: str = "", *, ignored_by: str = ""
) -> None:
    """Checks every key of a file that another library wrote, so that no setting is ignored silently.

    Keys whose value is null, false, zero or empty are ignored.

    Args:
      contents: contents of the file.
      where: the file, for messages.
      supported: as in `check_supported`.
      known: regular expressions, separated by spaces, of other keys that are read, or that do not change embeddings.
      ignored_by: library that ignores unknown keys in such files, so that they only cause a warning; empty: an error.
    """
    check_supported(contents, where, supported)
    pattern = re.compile("|".join([*supported, *known.split()]))
    unknown = {key: value for key, value in contents.items() if value not in OFF and not pattern.fullmatch(key)}
    if unknown:
        listed = ", ".join(f"{key}={json_files.shown(value)}" for key, value in [*unknown.items()][:10])
        if not ignored_by:
            raise EndxError(f"{where}: {listed} is not supported: the key is unknown; remove it if it changes nothing")
        warnings.warn(f"{where}: {listed}: unknown keys are ignored, as {ignored_by} ignores them", stacklevel=2)


class ReadKeys(dict):
    """Contents of a file; `read` has the keys that `get` was asked for."""

    def __init__(self, contents: Mapping, read: set[str] | None = None):
        """Copies the contents; `read` is the set to which keys are added, by default a new one."""
        super().__init__(contents)
        self.read = set() if read is None else read

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or the default."""
        self.read.add(key)
        return super().get(key, default)


def int_key(*names: str, default: Any = dataclasses.MISSING, least: int = 1, most: int = MOST_SIZE) -> Any:
    """Declares a whole number of `config.json` under one of several names; it is required unless it has a default."""
    return _declared(names, default, functools.partial(json_files.as_whole, least=least, most=most))


def float_key(*names: str, default: Any = dataclasses.MISSING, least: float = 0.0, most: float = 1.0) -> Any:
    """Declares a number of `config.json`, as `int_key`; it may be whole."""
    return _declared(names, default, functools.partial(json_files.as_number, least=least, most=most))


def enum_key(*names: str, choices: Collection[str], default: Any = dataclasses.MISSING) -> Any:
    """Declares a string of `config.json` that is one of `choices`, as `int_key`."""

    def check(value: object, where: str) -> object:
        check_choice(where, value, choices)
        return value

    return _declared(names, default, check)


def bool_key(*names: str, default: bool) -> Any:
    """Declares a value of `config.json` that is true or false, as `int_key`."""
    return _declared(names, default, json_files.as_flag)


def _declared(names: Sequence[str], default: Any, check: Callable[[object, str], Any]) -> Any:
    return dataclasses.field(default=default, metadata={"names": names, "check": check})


def read_key(config: Mapping, where: object, declared: dataclasses.Field) -> Any:
    """Returns the value of a declared key in a `config.json`, `where`: that of its first name with a value."""
    names = declared.metadata["names"]
    stated = [name for name in names if config.get(name) is not None]
    if stated:
        return declared.metadata["check"](config[stated[0]], f"{where}: {stated[0]}")
    if declared.default is dataclasses.MISSING:
        raise EndxError(f"{where} has no {' or '.join(names)}")
    return declared.default


@dataclasses.dataclass(frozen=True)
class HuggingFaceConfig:
    """Base of configs whose fields are declared by `int_key`, `float_key`, `enum_key` and `bool_key`."""

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Reads the contents of a `config.json`; `where` is the file, for messages."""
        return cls(**{field.name: read_key(config, where, field) for field in cls._declared()})

    def to_hugging_face(self) -> dict[str, Any]:
        """Returns the values of the declared fields by the first of their names, which is that of transformers."""
        return {field.metadata["names"][0]: getattr(self, field.name) for field in self._declared()}

    @classmethod
    def _declared(cls) -> list[dataclasses.Field]:
        return [field for field in dataclasses.fields(cls) if "names" in field.metadata]
