"""Checks of keys in files of other libraries; config dataclasses declare those of Hugging Face's `config.json`."""

import dataclasses
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

from endx_jax import json_files
from endx_jax.errors import EndxError

# The deepest published encoders have fewer than 100 layers. Shapes of all layers are computed before reading weights.
MOST_LAYERS = 1_000
MOST_SIZE = 2**24
MOST_TOKENS = 2**31 - 1  # ids are int32
OFF: Sequence = (None, False, "", [], {})  # false is equal to zero


def check_supported(contents: Mapping, where: object, only: Mapping[str, Sequence]) -> None:
    """Raises EndxError unless the values of keys are supported; `only` has them by key, the default first."""
    for key, values in only.items():
        if contents.get(key, values[0]) not in values:
            valid = " or ".join(map(repr, values))
            raise EndxError(f"{where}: {key}={json_files.shown(contents[key])} is not supported; supported: {valid}")


def check_keys(
    contents: Mapping, where: object, only: Mapping[str, Sequence], known: str = "", *, ignored_by: str = ""
) -> None:
    """Checks every key of a file that another library wrote, so that no setting is ignored silently.

    Keys whose value is null, false, zero or empty are ignored.

    Args:
      contents: contents of the file.
      where: the file, for messages.
      only: supported values by key, the default first.
      known: regular expressions, separated by spaces, of other keys that are read, or that do not change embeddings.
      ignored_by: library that ignores unknown keys in such files, so that they only cause a warning; empty: an error.

    Raises:
      EndxError: a value is not supported, or a key is unknown.
    """
    check_supported(contents, where, only)
    pattern = re.compile("|".join([*only, *known.split()]))
    unknown = {key: value for key, value in contents.items() if value not in OFF and not pattern.fullmatch(key)}
    if unknown:
        listed = ", ".join(f"{key}={json_files.shown(value)}" for key, value in [*unknown.items()][:10])
        if not ignored_by:
            raise EndxError(
                f"{where}: {listed} is not supported: the key is unknown and may change embeddings; remove it if it "
                "does not"
            )
        warnings.warn(f"{where}: {listed}: unknown keys are ignored, as {ignored_by} ignores them", stacklevel=2)


class ReadKeys(dict):
    """Contents of a file.

    Attributes:
      read: keys that `get` was asked for.
    """

    def __init__(self, contents: Mapping, read: set[str] | None = None):
        """Copies the contents; `read` is the set to which keys are added, by default a new one."""
        super().__init__(contents)
        self.read = set() if read is None else read

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key, or the default."""
        self.read.add(key)
        return super().get(key, default)


class Key(NamedTuple):
    """A value in `config.json`.

    Attributes:
      names: possible names of the key; the first one with a value is used.
      kind: `int` or `float`, where integers are accepted for floats; or `str` or `bool`.
      least: minimum value of a number.
      most: maximum value of a number.
      choices: possible values of a string.
    """

    names: tuple[str, ...]
    kind: type
    least: float = 0
    most: float = 0
    choices: tuple[str, ...] = ()


def whole(*names: str, default: Any = dataclasses.MISSING, least: int = 1, most: int = MOST_SIZE) -> Any:
    """Declares a field that is a whole number in `config.json`, where a key without a default has to be."""
    return dataclasses.field(default=default, metadata={"key": Key(names, int, least, most)})


def fraction(*names: str, default: Any = dataclasses.MISSING, least: float = 0.0, most: float = 1.0) -> Any:
    """Declares a field that is a number in `config.json`, perhaps a fractional one."""
    return dataclasses.field(default=default, metadata={"key": Key(names, float, least, most)})


def choice(*names: str, choices: Collection[str], default: Any = dataclasses.MISSING) -> Any:
    """Declares a field that is one of some strings in `config.json`."""
    return dataclasses.field(default=default, metadata={"key": Key(names, str, choices=tuple(choices))})


def flag(*names: str, default: bool) -> Any:
    """Declares a field that is true or false in `config.json`."""
    return dataclasses.field(default=default, metadata={"key": Key(names, bool)})


@dataclasses.dataclass(frozen=True)
class HuggingFaceConfig:
    """Base of configs whose fields are declared by `whole`, `fraction`, `choice` and `flag`."""

    @classmethod
    def from_hugging_face(cls, config: Mapping, where: object = "config.json") -> Self:
        """Reads the contents of a `config.json`; `where` is the file, for messages.

        Raises:
          EndxError: a key is missing, is not a number, or is out of range.
        """
        fields = [field for field in dataclasses.fields(cls) if "key" in field.metadata]
        return cls(**{field.name: _read(config, field, where) for field in fields})


def _read(config: Mapping, field: dataclasses.Field, where: object) -> Any:
    key: Key = field.metadata["key"]
    stated = [name for name in key.names if config.get(name) is not None]
    name = stated[0] if stated else None
    if name is None:
        if field.default is dataclasses.MISSING:
            raise EndxError(f"{where} has no {' or '.join(key.names)}")
        return field.default
    value = config[name]
    if key.kind is str:
        fits, wanted = value in list(key.choices), f"one of {', '.join(key.choices)}"
    elif key.kind is bool:
        fits, wanted = type(value) is bool, "true or false"
    else:
        fits = type(value) is int if key.kind is int else type(value) in (int, float)
        fits = fits and key.least <= value <= key.most
        number = "a whole number" if key.kind is int else "a number"
        wanted = f"{number} from {key.least:,} to {key.most:,}"
    if not fits:
        raise EndxError(f"{where}: {name} is {json_files.shown(value)}; it must be {wanted}")
    return key.kind(value)
