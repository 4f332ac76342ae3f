"""Numbers in a Hugging Face `config.json`: a table of keys with their bounds for each architecture."""

from collections.abc import Mapping
from typing import NamedTuple

from endx_jax import json_files
from endx_jax.errors import EndxError

# The deepest published encoders have fewer than 100; shapes are made for each layer before weights are read.
MOST_LAYERS = 1_000
MOST_SIZE = 2**24
MOST_TOKENS = 2**31 - 1  # ids are int32


class Key(NamedTuple):
    """A number in `config.json`.

    Attributes:
      names: of the key; the first one with a value is used.
      kind: `int` or `float`; integers are accepted for floats.
      least: smallest value.
      most: greatest value.
      default: value of a missing key or null; None for a required key.
    """

    names: tuple[str, ...]
    kind: type
    least: float
    most: float
    default: float | None


def whole(*names: str, default: int | None = None, least: int = 1, most: int = MOST_SIZE) -> Key:
    """Returns the key of a whole number."""
    return Key(names, int, least, most, default)


def fraction(*names: str, default: float | None = None, least: float = 0.0, most: float = 1.0) -> Key:
    """Returns the key of a number that may be fractional."""
    return Key(names, float, least, most, default)


def read_keys(config: Mapping, keys: Mapping[str, Key], where: object) -> dict[str, int | float]:
    """Returns the values of the fields of a config dataclass.

    Args:
      config: contents of a `config.json`.
      keys: by field.
      where: the file, for messages.

    Raises:
      EndxError: a key is missing, is not a number, or is out of its bounds.
    """
    return {field: value for field, key in keys.items() if (value := _read(config, key, where)) is not None}


def _read(config: Mapping, key: Key, where: object) -> int | float | None:
    name = next((name for name in key.names if config.get(name) is not None), None)
    if name is None:
        if key.default is None:
            raise EndxError(f"{where} lacks {' or '.join(key.names)}")
        return key.default
    value = config[name]
    fits = type(value) is int if key.kind is int else type(value) in (int, float)
    if not fits or not key.least <= value <= key.most:
        wanted = "a whole number" if key.kind is int else "a number"
        raise EndxError(
            f"{where}: {name} is {json_files.shown(value)}; it must be {wanted} from {key.least:,} to {key.most:,}"
        )
    return key.kind(value)
