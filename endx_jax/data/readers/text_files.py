"""Reading of data files within memory limits: files of a folder, lines, and items of JSON lists one at a time."""

import codecs
import contextlib
import glob
import gzip
import io
import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from endx_jax import json_files
from endx_jax.errors import EndxError

# Maximum bytes of a line, and characters of an item of a JSON list, since each is held in memory. The longest pages of
# Natural Questions have a tenth of this.
MOST = 32_000_000
# Maximum values in one line or item; Python needs about 70 bytes for each.
MOST_VALUES = 4_000_000
# Bytes at the beginning of a file that are read to detect its format.
HEAD = 1_000_000

# Endings of the files that `arrow` reads.
ARROW_ENDINGS = (".parquet", ".arrow", ".feather")

LOG = logging.getLogger("endx_jax")

_BLOCK = 1_000_000
_DECODER = json.JSONDecoder()
# Characters that may continue a number.
_NUMBER = re.compile(r"[-+.eE0-9]*")
_SPACE = re.compile(r"[ \t\n\r]*")


class InvalidRows:
    """Handler of the invalid rows of a file: skips and counts them, or raises EndxError for the first one."""

    def __init__(self, path: str, *, skip: bool | None = None):
        """Starts with no skipped rows.

        Args:
          path: file or folder, for messages.
          skip: true to skip invalid rows; false to raise an error that mentions `data.skip_invalid`; None to raise one
            that does not, for data to which that setting does not apply.
        """
        self._path, self._skip = path, skip
        self._count, self._first = 0, ""

    @contextlib.contextmanager
    def row(self) -> Iterator[None]:
        """Handles an EndxError that is raised in the block, which reads one row."""
        try:
            yield
        except EndxError as failure:
            if not self._skip:
                hint = "" if self._skip is None else "; data.skip_invalid=True skips such rows"
                raise EndxError(f"{failure}{hint}") from None
            self._count += 1
            self._first = self._first or str(failure)

    @property
    def report(self) -> str:
        """Number of skipped rows and the first reason; empty if none was skipped."""
        return f"skipped {self._count:,} invalid rows, the first: {self._first}" if self._count else ""

    def log(self) -> None:
        """Logs `report` as a warning."""
        if self._count:
            LOG.warning("%s: %s", self._path, self.report)


def uncompressed(path: str) -> str:
    """Returns a file name in lower case, without `.gz`."""
    return path.lower().removesuffix(".gz")


def ending(path: str, known: Iterable[str]) -> str:
    """Returns the ending of a file name in lower case, without `.gz`.

    Raises:
      EndxError: the file does not exist, or its ending is not in `known`.
    """
    if not os.path.exists(path):
        raise EndxError(f"{path}: no such file or folder")
    packed = ".gz" * path.lower().endswith(".gz")
    found = os.path.splitext(uncompressed(path))[1]
    if found not in known or (found in ARROW_ENDINGS and packed):
        text = ", ".join(name for name in known if name not in ARROW_ENDINGS)
        raise EndxError(
            f"{path}: unknown ending {found + packed!r}; known are {text}, each also with .gz, "
            f"{', '.join(ARROW_ENDINGS)}, and folders of BEIR, MS MARCO or save_to_disk"
        )
    return found


def plain_or_gzip(path: str) -> str:
    """Returns the path, with `.gz` appended if only that file exists."""
    return f"{path}.gz" if not os.path.exists(path) and os.path.exists(f"{path}.gz") else path


@contextlib.contextmanager
def _opened(path: str) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    """Opens a file, decompresses it if its name ends in `.gz`, and skips a byte-order mark.

    Raises:
      EndxError: the file is missing, not readable, or not a valid gzip file.
    """
    try:
        with gzip.open(path, "rb") if path.lower().endswith(".gz") else open(path, "rb") as file:
            if file.peek(3).startswith(codecs.BOM_UTF8):
                file.read(3)
            yield file
    except FileNotFoundError:
        raise EndxError(f"{path}: no such file") from None
    except EOFError:
        raise EndxError(f"{path}: the gzip data ends too early; fetch the file again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise EndxError(f"{path}: broken gzip data ({error}); fetch the file again") from None
    except OSError as error:
        raise EndxError(f"{path}: cannot be read: {error.strerror}") from None


def blocks(path: str) -> Iterator[bytes]:
    """Yields the decompressed bytes of a file without its byte-order mark, at most a megabyte at a time."""
    with _opened(path) as file:
        while block := file.read(_BLOCK):
            yield block


def head(path: str, size: int = HEAD) -> str:
    """Returns the first `size` bytes of a text file as a string, without bytes that are not UTF-8."""
    with _opened(path) as file:
        return file.read(size).decode("utf-8", errors="ignore")


def lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line with its newline).

    Raises:
      EndxError: the file is missing, empty, not readable, not UTF-8, or a broken gzip file, or a line is too long.
    """
    number = 0
    with _opened(path) as file:
        for number, line in stream_lines(file, path):
            yield number, line
    if number == 0:
        raise EndxError(f"{path}: the file is empty")


def stream_lines(stream: BinaryIO | gzip.GzipFile | io.BufferedReader, name: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line with its newline) of a stream, which messages call `name`."""
    number = 0
    while raw := stream.readline(MOST + 1):
        number += 1
        if len(raw) > MOST:
            raise EndxError(f"{name}, line {number}: the line is longer than {MOST:,} bytes; break it up")
        yield number, _decode(raw, f"{name}, line {number}")


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start + 1}: 0x{raw[error.start]:02x} is not UTF-8"
        raise EndxError(f"{where}, {reason}; save the file as UTF-8") from None


def check_values(text: str, where: str) -> None:
    """Raises EndxError if a JSON text has more than `MOST_VALUES` values."""
    if len(text) > MOST_VALUES and sum(map(text.count, ",[{")) > MOST_VALUES:
        raise EndxError(f"{where}: more than {MOST_VALUES:,} values in one line or item; break it up")


def items(path: str, key: str = "") -> Iterator[tuple[int, Any]]:
    """Yields (number of its first line, item) for each item of a list in a JSON file, one at a time.

    Args:
      path: `.json` or `.json.gz` file.
      key: key of the list in the file's object; empty if the file is a list.

    Raises:
      EndxError: the file has no such list, is invalid, or has an item that is too large.
    """
    text = _JsonText(path)
    if not key:
        yield from text.items("the file")
        text.end()
    else:
        found = False
        for name in text.members():
            if name == key:
                found = True
                yield from text.items(key)
            else:
                text.value()
        text.end()
        if not found:
            raise EndxError(f"{path}: the top level has no {key!r}; a .json file with one object is read as SQuAD")


class _JsonText:
    """Incremental parser of a JSON file, with one value in memory at a time."""

    def __init__(self, path: str):
        self._path, self._blocks = path, blocks(path)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._read = "", 0, 0
        self._line, self._column = 1, 1

    def members(self) -> Iterator[str]:
        """Yields the keys of the object at the current position; the caller reads the value after each key."""
        self._take("{", "the top level must be an object")
        while self._peek() != "}":
            name = self.value()
            if not isinstance(name, str):
                raise EndxError(f"{self._where()}: broken JSON: a key must be a string")
            self._take(":", "broken JSON: Expecting ':' delimiter")
            yield name
            self._comma("}")
        self._pass(1)

    def items(self, what: str) -> Iterator[tuple[int, Any]]:
        """Yields (line, item) for the items of the list at the current position, which messages call `what`."""
        self._take("[", f"{what} must be a list")
        while self._peek() != "]":
            line = self._line
            yield line, self.value()
            self._comma("]")
        self._pass(1)

    def end(self) -> None:
        """Raises EndxError unless the current position is the end of the file."""
        if self._peek():
            hint = "a file of one object a line is named .jsonl"
            raise EndxError(f"{self._where()}: broken JSON: Extra data; {hint}")

    def value(self) -> Any:
        """Returns the value at the current position."""
        self._peek()
        while True:
            try:
                found, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                self._read_on(error)
                continue
            except (RecursionError, ValueError) as error:
                raise json_files.refusal(error, self._where()) from None
            if type(found) in (int, float) and _NUMBER.fullmatch(self._text, end) and self._more():
                continue  # more digits may follow
            self._pass(end - self._at)
            return found

    def _read_on(self, failure: json.JSONDecodeError) -> None:
        """Reads more of a value that can't be parsed yet because it continues in the next blocks.

        Raises:
          EndxError: the value is invalid or too large.
        """
        cut = failure.msg.startswith("Unterminated string") or failure.pos > len(self._text) - len("-Infinity")
        if cut and len(self._text) - self._at > MOST:
            raise EndxError(f"{self._where()}: an item of the list is longer than {MOST:,} characters; break it up")
        if cut and self._more():
            check_values(self._text, self._where())
        elif cut and (failure.msg.startswith("Unterminated") or not self._text[failure.pos :].strip()):
            raise EndxError(f"{self._where()}: the file ends inside what begins here; fetch it again")
        else:
            self._pass(failure.pos - self._at)
            raise EndxError(f"{self._where()}: broken JSON: {failure.msg}")

    def _more(self) -> bool:
        """Doubles the text that is held, so that a value is decoded few times; returns false at the end of the file."""
        rest = len(self._text) - self._at
        wanted = max(1, min(rest, MOST + 1 - rest))
        parts: list[str] = []
        while wanted > 0 and (block := next(self._blocks, None)) is not None:
            parts.append(self._decode(block))
            wanted -= len(block)
        if parts:
            self._text, self._at = "".join([self._text[self._at :], *parts]), 0
        return bool(parts)

    def _decode(self, block: bytes) -> str:
        try:
            self._read += len(block)
            return self._decoder.decode(block)
        except UnicodeDecodeError as error:
            place = self._read - len(block) + error.start + 1
            reason = f"byte {place:,}: 0x{error.object[error.start]:02x} is not UTF-8; save the file as UTF-8"
            raise EndxError(f"{self._path}, {reason}") from None

    def _peek(self) -> str:
        """Returns the next character that is not white space; empty at the end of the file."""
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found
            self._pass(found.end() - self._at)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _take(self, character: str, reason: str) -> None:
        found = self._peek()
        if found != character:
            kinds = {"{": "an object", "[": "a list", '"': "a string", "": "the end of the file"}
            where = self._where() if reason.startswith("broken") else self._path
            raise EndxError(f"{where}: {reason}" + (f", not {kinds[found]}" if found in kinds else ""))
        self._pass(1)

    def _comma(self, closing: str) -> None:
        found = self._peek()
        if found == ",":
            self._pass(1)
            if self._peek() == closing:
                raise EndxError(f"{self._where()}: broken JSON: a comma before {closing}")
        elif not found:
            raise EndxError(f"{self._where()}: the file ends inside its list or object; fetch it again")
        elif found != closing:
            raise EndxError(f"{self._where()}: broken JSON: Expecting ',' delimiter")

    def _pass(self, count: int) -> None:
        """Advances by `count` characters."""
        end = self._at + count
        newlines = self._text.count("\n", self._at, end)
        self._line += newlines
        self._column = end - self._text.rfind("\n", self._at, end) if newlines else self._column + count
        self._at = end

    def _where(self) -> str:
        return f"{self._path}, line {self._line}, column {self._column}"


def find(folder: str | os.PathLike, names: Sequence[str]) -> list[list[str]]:
    """Returns the files of a folder that match each of `names`, sorted; at least one for each.

    Args:
      folder: folder with the files.
      names: paths inside the folder. A name may contain `*`, and alternatives separated by `|`, of which the first
        that exists is used. Each file may also exist as `.gz`.

    Raises:
      EndxError: the folder or a file is missing.
    """
    folder = os.path.expanduser(folder)
    readable = [name.replace("|", " or ") for name in names]
    if not os.path.isdir(folder):
        raise EndxError(f"{folder}: no such folder; give one that holds {' and '.join(readable)}, or the same as .gz")
    found = [next(filter(None, (_files(folder, choice) for choice in name.split("|"))), []) for name in names]
    missing = [name for name, files in zip(readable, found, strict=True) if not files]
    if missing:
        raise EndxError(f"{folder} lacks {' and '.join(missing)}, which may also be there as .gz")
    return found


def chosen_split(found: Sequence[str], split: str | None, where: str) -> str:
    """Returns the requested split or, without a request, the only one.

    Raises:
      EndxError: there is no such split, or there are several and none was requested.
    """
    if split is None and len(found) > 1:
        raise EndxError(f"{where}: several splits; choose one with data.split: {', '.join(found)}")
    if split is not None and split not in found:
        raise EndxError(f"{where}: no split {split!r}; choose with data.split from {', '.join(found)}")
    return split or found[0]


def _files(folder: str, name: str) -> list[str]:
    pattern = os.path.join(glob.escape(folder), name)
    plain = glob.glob(pattern)
    packed = [path for path in glob.glob(f"{pattern}.gz") if path.removesuffix(".gz") not in plain]
    return sorted(path for path in plain + packed if os.path.isfile(path))
