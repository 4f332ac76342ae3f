"""Reading of untrusted JSON: files and lines within limits, and values checked for their type."""

import contextlib
import itertools
import json
import pathlib
import reprlib
from collections.abc import Iterable
from typing import Any

from endx_jax.errors import EndxError

# Bytes of a file that is read at once. The largest tokenizer.json of a published model has some 35 MB.
MOST_BYTES = 256_000_000
# Bytes of a path that a file may name.
LONGEST_PATH = 1_000


def parse(contents: str | bytes, where: str, expected: type | tuple[type, ...] = object) -> Any:
    """Returns the value that a JSON text holds.

    Args:
      contents: the text; bytes are UTF-8.
      where: names the text in messages, such as a file, or a file and a line.
      expected: type, or types, that the value must have: `dict`, `list`, ...

    Raises:
      EndxError: the text is not JSON, is nested too deeply, has a number of thousands of digits, or has another type.
    """
    try:
        found = json.loads(contents)
    except json.JSONDecodeError as error:
        raise EndxError(f"{where}{_position(error)}: broken JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise EndxError(f"{where}, byte {error.start + 1}: 0x{error.object[error.start]:02x} is not UTF-8") from None
    except (RecursionError, ValueError) as error:
        raise refusal(error, where) from None
    if not isinstance(found, expected):
        types = expected if isinstance(expected, tuple) else (expected,)
        raise EndxError(f"{where} must be {' or '.join(kind(each()) for each in types)}, not {kind(found)}")
    return found


def refusal(error: RecursionError | ValueError, where: str) -> EndxError:
    """Returns the EndxError for a decoder error that is not about syntax."""
    if isinstance(error, RecursionError):
        return EndxError(f"{where}: the JSON is nested too deeply")
    # Python refuses to convert long numbers, since that takes quadratic time.
    return EndxError(f"{where}: a whole number has more than 4,300 digits")


def _position(error: json.JSONDecodeError) -> str:
    """Returns the position of a syntax error; without a line number if the text is one line."""
    column = f", column {error.colno}"
    return f", line {error.lineno}{column}" if "\n" in error.doc.rstrip() else column


def read(file: pathlib.Path, expected: type | tuple[type, ...] = dict, *, most_bytes: int = MOST_BYTES) -> Any:
    """Returns the value in a JSON file, as `parse` does.

    Raises:
      EndxError: the file can't be read, is larger than `most_bytes`, or `parse` refuses it.
    """
    try:
        with open(file, "rb") as stream:
            contents = stream.read(most_bytes + 1)
    except OSError as error:
        raise EndxError(f"{file} can't be read: {error.strerror}") from None
    except ValueError as error:  # the name holds a null character or half a surrogate pair
        raise EndxError(f"{str(file)!a} can't be read: {error}") from None
    if len(contents) > most_bytes:
        raise EndxError(f"{file} is larger than {most_bytes:,} bytes")
    return parse(contents, str(file), expected)


def read_optional(file: pathlib.Path) -> dict:
    """Returns the object in a JSON file, empty if there is no such file."""
    return read(file) if file.is_file() else {}


def text(value: object, where: str, *, may_be_empty: bool = False, strip: bool = True) -> str:
    """Checks that a value is a string, and returns it.

    Args:
      value: the value to check.
      where: names the value in messages.
      may_be_empty: accepts a string that is empty or only white space.
      strip: removes white space at both ends; false where other values count its characters.
    """
    if not isinstance(value, str):
        raise EndxError(f"{where} must be a string, not {kind(value)}")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise EndxError(f"{where} holds {value[error.start]!a}, half a surrogate pair, which is no text") from None
    stripped = value.strip()
    if not stripped and not may_be_empty:
        raise EndxError(f"{where} is empty")
    return stripped if strip else value


_MISSING = object()


def value(holder: object, key: str, where: str, default: object = _MISSING) -> object:
    """Returns the value at `key` of an object; `where` begins the error message.

    Raises:
      EndxError: the key is missing and has no default, or `holder` is not an object.
    """
    fields = mapped(holder, where)
    found = fields.get(key, default)
    if found is _MISSING:
        raise EndxError(f"{where}: no {key!r} among {names(fields)}")
    return found


def text_at(holder: object, key: str, where: str, default: object = _MISSING, **options: bool) -> str:
    """Returns the string at `key` of the object at `where`: see `value` and `text`."""
    return text(value(holder, key, where, default), f"{where}: {key!r}", **options)


def list_at(holder: object, key: str, where: str, default: object = _MISSING) -> list:
    """Returns the list at `key` of the object at `where`: see `value` and `listed`."""
    return listed(value(holder, key, where, default), f"{where}: {key!r}")


def names(found: Iterable[str]) -> str:
    """Returns the first names as a list for messages, each cut to 30 characters."""
    first = [reprlib.repr(name) for name in itertools.islice(found, 21)]
    return ", ".join([*first[:20], "..."] if len(first) > 20 else first)


def listed(value: object, where: str) -> list:
    """Returns the value if it is a list, else raises EndxError."""
    if not isinstance(value, list):
        raise EndxError(f"{where} must be a list, not {kind(value)}")
    return value


def mapped(value: object, where: str) -> dict[str, Any]:
    """Returns the value if it is an object, else raises EndxError."""
    if not isinstance(value, dict):
        raise EndxError(f"{where} must be an object, not {kind(value)}")
    return value


def identifier(value: object, where: str) -> str:
    """Returns an id, which may be a string (possibly empty) or a whole number, as a string."""
    return str(value) if type(value) is int else text(value, where, may_be_empty=True)


def whole(value: object, where: str, *, least: int = 0, most: int = 2**31 - 1) -> int:
    """Checks that a value is a whole number from `least` to `most`, and returns it."""
    if type(value) is int and least <= value <= most:
        return value
    raise EndxError(f"{where} is {shown(value)}; it must be a whole number from {least:,} to {most:,}")


def number(value: object, where: str) -> float:
    """Checks that a value is a number (NaN and infinity included), and returns it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # of a whole number beyond floats
            return float(value)
    raise EndxError(f"{where} is {shown(value)}; it must be a number")


def inside(folder: pathlib.Path, value: object, where: str) -> pathlib.Path:
    """Checks that a value names a path below `folder`, and returns the path.

    Symbolic links are followed, since the Hugging Face cache consists of them.
    """
    name = text(value, where, may_be_empty=True)
    path = pathlib.PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        raise EndxError(f"{where} is {shown(name)}, which is not in the folder of the file")
    if "\0" in name or len(name.encode()) > LONGEST_PATH:
        raise EndxError(f"{where} is {shown(name)}, which is no path")
    return folder / path


def shown(value: object) -> str:
    """Returns the `repr` of a value, shortened, for messages."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def kind(value: object) -> str:
    """Returns the name of a JSON value's type, for messages."""
    return {
        dict: "an object",
        list: "a list",
        str: "a string",
        int: "a whole number",
        float: "a fractional number",
        bool: "true or false",
        type(None): "null",
    }[type(value)]
