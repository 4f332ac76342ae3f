"""Reading of untrusted JSON: limits on size, and checks of types with one-line errors."""

import contextlib
import itertools
import json
import numbers
import os
import pathlib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

from endx_jax.errors import EndxError

MOST_BYTES = 256_000_000  # maximum size of a file; the largest tokenizer.json of published models has about 35 MB
LONGEST_PATH = 1_000  # maximum bytes of a path in a file
# Beginnings of files whose contents are not what their names say.
POINTER = "version https://git-lfs"
PAGE = re.compile(r"\s*<(!doctype html|html)\b[^>]*>\s*<(html|head|body|meta|title|!--)\b", re.IGNORECASE)


def check_contents(file: object, head: bytes | str | None = None) -> None:
    """Raises EndxError if a file is a Git LFS pointer or a web page, which some downloads save instead of the file.

    `head` is the beginning of its contents; None to read it from the path `file`.
    """
    if head is None:
        with open(str(file), "rb") as stream:
            head = stream.read(200)
    text = head if isinstance(head, str) else head.decode("utf-8", errors="ignore")
    if text.startswith(POINTER):
        raise EndxError(f"{file} is a Git LFS pointer, not the file itself: run git lfs pull in its repository")
    if PAGE.match(text):
        raise EndxError(f"{file} is a web page (HTML), not the file itself: download the file again")


def parse(contents: str | bytes, where: str, expected: type | tuple[type, ...] = object, *, extra: str = "") -> Any:
    """Parses a JSON text.

    Args:
      contents: JSON text; bytes are UTF-8.
      where: name of the text in messages, such as a file and a line.
      expected: type or types that the value must have, such as `dict`.
      extra: advice for a text that holds more than one value.

    Raises:
      EndxError: the text is not JSON, is nested too deeply, has an integer of over 4,300 digits, or has another type.
    """
    try:
        parsed = json.loads(contents)
    except json.JSONDecodeError as error:
        check_contents(where, error.doc[:200])
        advice = extra if error.msg == "Extra data" else ""
        raise EndxError(f"{where}{_position(error)}: broken JSON: {error.msg}{advice}") from None
    except UnicodeDecodeError as error:
        raise EndxError(f"{where}, byte {error.start + 1}: 0x{error.object[error.start]:02x} is not UTF-8") from None
    except (RecursionError, ValueError) as error:
        raise decoder_error(error, where) from None
    if not isinstance(parsed, expected):
        types = expected if isinstance(expected, tuple) else (expected,)
        raise EndxError(f"{where} must be {' or '.join(kind(each()) for each in types)}, not {kind(parsed)}")
    return parsed


def decoder_error(error: RecursionError | ValueError, where: str) -> EndxError:
    """Returns the EndxError for a decoder error that is not about syntax."""
    if isinstance(error, RecursionError):
        return EndxError(f"{where}: the JSON is nested too deeply")
    # Python refuses to convert long numbers, since that takes quadratic time.
    return EndxError(f"{where}: a whole number has more than 4,300 digits")


def _position(error: json.JSONDecodeError) -> str:
    """Returns the position of a syntax error; without the line number if the text has one line."""
    column = f", column {error.colno}"
    return f", line {error.lineno}{column}" if "\n" in error.doc.rstrip() else column


def read_json_file(
    file: pathlib.Path, expected: type | tuple[type, ...] = dict, *, most_bytes: int = MOST_BYTES
) -> Any:
    """Reads and parses a JSON file: see `parse`.

    Raises:
      EndxError: the file can't be read, is larger than `most_bytes`, or can't be parsed.
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
    """Reads a JSON file that holds an object; returns an empty dictionary if there is no such file."""
    return read_json_file(file) if file.is_file() else {}


def as_text(value: object, where: str, *, may_be_empty: bool = False, strip: bool = True) -> str:
    """Checks that a value is a string.

    Args:
      value: value to check.
      where: name of the value in messages.
      may_be_empty: true to accept strings that are empty or white space.
      strip: true to remove white space at both ends; false for strings into which other values are offsets.

    Raises:
      EndxError: the value is not a string, is empty, or is not valid Unicode.
    """
    if not isinstance(value, str):
        raise EndxError(f"{where} must be a string, not {kind(value)}")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise EndxError(f"{where} holds {value[error.start]!a}, half a surrogate pair, which is not text") from None
    stripped = value.strip()
    if not stripped and not may_be_empty:
        raise EndxError(f"{where} is empty")
    return stripped if strip else value


_MISSING = object()


def value(holder: object, key: str, where: str, default: object = _MISSING) -> object:
    """Returns the value at `key` of the object `holder`, which messages call `where`.

    Raises:
      EndxError: the key is missing and has no default, or `holder` is not an object.
    """
    fields = as_object(holder, where)
    field = fields.get(key, default)
    if field is _MISSING:
        raise EndxError(f"{where}: no {key!r} among {format_names(fields)}")
    return field


def text_at(holder: object, key: str, where: str, default: object = _MISSING, **options: bool) -> str:
    """Returns the string at `key` of an object: see `value` and `as_text`."""
    return as_text(value(holder, key, where, default), f"{where}: {key!r}", **options)


def list_at(holder: object, key: str, where: str, default: object = _MISSING) -> list:
    """Returns the list at `key` of an object, where a default also replaces null: see `value` and `as_list`."""
    found = value(holder, key, where, default)
    return as_list(default if found is None and default is not _MISSING else found, f"{where}: {key!r}")


def format_names(names: Iterable[object]) -> str:
    """Formats up to 20 names or numbers for messages, each shortened to 30 characters."""
    first = [reprlib.repr(name) for name in itertools.islice(names, 21)]
    return ", ".join([*first[:20], "..."] if len(first) > 20 else first)


def as_list(value: object, where: str) -> list:
    """Returns `value` if it is a list; raises EndxError otherwise."""
    if not isinstance(value, list):
        raise EndxError(f"{where} must be a list, not {kind(value)}")
    return value


def as_items(value: object, where: str, wanted: str) -> list:
    """Returns the items of an iterable, or a string as the only item; else raises EndxError with what is `wanted`."""
    if not isinstance(value, Iterable) or isinstance(value, bytes) or getattr(value, "ndim", 1) == 0:
        raise EndxError(f"{where} is {shown(value)}; pass {wanted}")
    return [value] if isinstance(value, str) else list(value)


def as_path(value: object, where: str = "path") -> str:
    """Returns a path as a string; raises EndxError for other types."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise EndxError(f"{where} is of type {type(value).__name__}; pass the path of a file or folder")


def as_object(value: object, where: str) -> dict[str, Any]:
    """Returns `value` if it is an object; raises EndxError otherwise."""
    if not isinstance(value, dict):
        raise EndxError(f"{where} must be an object, not {kind(value)}")
    return value


def identifier(value: object, where: str) -> str:
    """Returns an id, which may be a string or an integer, as a string; raises EndxError for other types."""
    return str(value) if type(value) is int else as_text(value, where, may_be_empty=True)


def identifier_at(holder: object, key: str, where: str, default: object = _MISSING) -> str:
    """Returns the id at `key` of an object: see `value` and `identifier`."""
    return identifier(value(holder, key, where, default), f"{where}: {key!r}")


def as_whole(value: object, where: str, *, least: int = 0, most: int = 2**31 - 1) -> int:
    """Returns `value` if it is an integer from `least` to `most`; raises EndxError otherwise."""
    if not isinstance(value, bool) and isinstance(value, numbers.Integral) and least <= int(value) <= most:
        return int(value)
    raise EndxError(f"{where} is {shown(value)}; it must be a whole number from {least:,} to {most:,}")


def as_number(value: object, where: str, *, least: float, most: float) -> float:
    """Returns `value` as a float if it is a number from `least` to `most`; raises EndxError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        return float(value)
    raise EndxError(f"{where} is {shown(value)}; it must be a number from {least:,} to {most:,}")


def as_flag(value: object, where: str) -> bool:
    """Returns `value` if it is true or false; raises EndxError otherwise."""
    if isinstance(value, bool):
        return value
    raise EndxError(f"{where} is {shown(value)}; it must be true or false")


def number(value: object, where: str) -> float:
    """Returns `value` as a float if it is a number, NaN and infinity included; raises EndxError otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # integers beyond the range of floats
            return float(value)
    raise EndxError(f"{where} is {shown(value)}; it must be a number")


def inside(folder: pathlib.Path, value: object, where: str) -> pathlib.Path:
    """Returns the path of a file in `folder` by its relative path; raises EndxError if it is outside the folder.

    Symbolic links are allowed, since the Hugging Face cache consists of them.
    """
    name = as_text(value, where, may_be_empty=True)
    path = pathlib.PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        raise EndxError(f"{where} is {shown(name)}, which is not in the folder of the file")
    if "\0" in name or len(name.encode()) > LONGEST_PATH:
        raise EndxError(f"{where} is {shown(name)}, which is not a valid path")
    return folder / path


def shown(value: object) -> str:
    """Returns the shortened `repr` of a value, for messages."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def is_missing(value: object) -> bool:
    """Returns true for null and NaN, which tables write for missing values."""
    return value is None or (isinstance(value, float) and value != value)


def kind(value: object) -> str:
    """Returns the name of the type of a value, for messages."""
    if value is not None and is_missing(value):
        return "NaN, a missing value"
    return {
        dict: "an object",
        list: "a list",
        str: "a string",
        int: "a whole number",
        float: "a fractional number",
        bool: "true or false",
        type(None): "null",
    }.get(type(value), f"of type {type(value).__name__}")
