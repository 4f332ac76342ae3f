"""Text files with line numbers: plain or gzipped, UTF-8 with or without a byte-order mark, refused in one line."""

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator

from endx_jax.errors import EndxError


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
