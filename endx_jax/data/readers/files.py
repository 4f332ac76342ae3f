"""Text files with line numbers: plain or gzipped, UTF-8 with or without a byte-order mark, refused in one line."""

import codecs
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator

from endx_jax.errors import EndxError

# A string of JSON, which holds no line break; and what an item begins with in a list of objects.
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ITEM = re.compile(r"[^\s,\[\]]")
_DECODER = json.JSONDecoder()


def ending(path: str, known: Iterable[str]) -> str:
    """What a file's name ends in, before an optional `.gz`, in lower case.

    Raises:
      EndxError: there is nothing at the path, or its ending is none of those `known`.
    """
    if not os.path.exists(path):
        raise EndxError(f"{path}: no such file or folder")
    found = os.path.splitext(path.lower().removesuffix(".gz"))[1]
    if found not in known:
        endings = ", ".join(known)
        raise EndxError(f"{path}: unknown ending {found!r}; known are {endings}, each also with .gz, and BEIR folders")
    return found


def perhaps_packed(path: str) -> str:
    """The path, or where there is no such file but one with `.gz`, that."""
    return f"{path}.gz" if not os.path.exists(path) and os.path.exists(f"{path}.gz") else path


def lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line with its newline); a name that ends in `.gz` is unpacked on the way.

    Raises:
      EndxError: the file is missing, empty, not readable, not UTF-8, or a broken gzip file.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                yield number, _decode(raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw, path, number)
    except FileNotFoundError:
        raise EndxError(f"{path}: no such file") from None
    except EOFError:
        raise EndxError(f"{path}: the gzip data ends too early, after line {number}; fetch the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise EndxError(f"{path}: broken gzip data after line {number} ({error}); fetch the file again") from None
    except OSError as error:
        raise EndxError(f"{path}: cannot be read: {error.strerror}") from None
    if number == 0:
        raise EndxError(f"{path}: the file is empty")


def _decode(raw: bytes, path: str, number: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{path}, line {number}, byte {error.start + 1}"
        raise EndxError(f"{where}: 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8") from None


def objects(path: str) -> Iterator[tuple[int, dict]]:
    """Yields (line number, object) for each line of a JSONL file; blank lines are skipped."""
    for number, line in lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line.rstrip())
        except json.JSONDecodeError as error:
            raise EndxError(f"{path}, line {number}, column {error.colno}: broken JSON: {error.msg}") from None
        if not isinstance(value, dict):
            raise EndxError(f"{path}, line {number}: a line must be a JSON object, not {kind(value)}")
        yield number, value


def items(path: str) -> Iterator[tuple[int, dict]]:
    """Yields (line on which it begins, object) for each item of a file that is one JSON list of objects.

    Where every item begins on a line of its own, as in indented files, one is in memory at a time; a file of one line
    is read whole.

    Raises:
      EndxError: the file is not such a list, named by line, or ends before its list does.
    """
    number, begins, depth = 0, 1, 0
    part: list[str] = []
    for number, line in lines(path):
        bare = _STRING.sub("", line)
        depth += bare.count("[") + bare.count("{") - bare.count("]") - bare.count("}")
        part.append(line)
        if depth <= 1:
            yield from _items_of("".join(part), begins, path)
            part, begins = [], number + 1
    if depth:
        raise EndxError(f"{path}: the file ends inside its list, after line {number}; fetch it again")


def _items_of(fragment: str, begins: int, path: str) -> Iterator[tuple[int, dict]]:
    """The items of a piece of a list that is cut between items; the list's own brackets and commas are passed over."""
    number, at = begins, 0
    while True:
        found = _ITEM.search(fragment, at)
        if found is None:
            return
        start = found.start()
        number += fragment.count("\n", at, start)
        try:
            value, at = _DECODER.raw_decode(fragment, start)
        except json.JSONDecodeError as error:
            where = f"{path}, line {begins + error.lineno - 1}, column {error.colno}"
            raise EndxError(f"{where}: broken JSON: {error.msg}") from None
        if not isinstance(value, dict):
            raise EndxError(f"{path}, line {number}: an item of the list must be an object, not {kind(value)}")
        yield number, value
        number += fragment.count("\n", start, at)


def text(value: object, where: str, *, may_be_empty: bool = False) -> str:
    """The string `value` without white space at its ends; `where` names it in the refusal of anything else."""
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
    return stripped


_MISSING = object()


def value(holder: object, key: str, where: str, default: object = _MISSING) -> object:
    """The value at `key` of what must be an object; `where` names it in the refusal of anything else.

    Raises:
      EndxError: there is none and no default, or `holder` is no object.
    """
    if not isinstance(holder, dict):
        raise EndxError(f"{where} must be an object, not {kind(holder)}")
    found = holder.get(key, default)
    if found is _MISSING:
        raise EndxError(f"{where}: no {key!r} among {', '.join(map(repr, holder))}")
    return found


def listed(value: object, where: str) -> list:
    """The value, which must be a list."""
    if not isinstance(value, list):
        raise EndxError(f"{where} must be a list, not {kind(value)}")
    return value


def identifier(value: object, where: str) -> str:
    """The id, a string or a whole number; it may be empty."""
    return str(value) if type(value) is int else text(value, where, may_be_empty=True)


def kind(value: object) -> str:
    """What a decoded JSON value is called, for messages."""
    return {
        dict: "an object",
        list: "a list",
        str: "a string",
        int: "a whole number",
        float: "a fractional number",
        bool: "true or false",
        type(None): "null",
    }[type(value)]
