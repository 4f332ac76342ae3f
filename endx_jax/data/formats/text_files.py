"""Reading of data files within memory limits: blocks, lines, JSON and YAML, and the handler of invalid rows."""

import codecs
import contextlib
import gzip
import io
import json
import logging
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from endx_jax import json_files
from endx_jax.errors import EndxError, counted

# Maximum bytes of a line, and characters of an item of a JSON list, since each is held in memory. The longest pages of
# Natural Questions have a tenth of this.
MOST = 32_000_000
# Maximum values in one line or item; Python needs about 70 bytes for each.
MOST_VALUES = 4_000_000
# Bytes at the beginning of a file that are read to detect its format.
HEAD = 1_000_000

# Endings of the files that `row_files.arrow_rows` reads, and of YAML, with its maximum bytes, since its parser is slow.
ARROW_ENDINGS = (".parquet", ".arrow", ".feather")
YAML, MOST_YAML = (".yml", ".yaml"), 2_000_000

LOG = logging.getLogger("endx_jax")

_BLOCK = 1_000_000
_DECODER = json.JSONDecoder()
_NOT_SPACE = re.compile(r"[^ \t\n\r]")


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
                hint = "; --skip-invalid (in training --config.data.skip_invalid=True) skips such rows"
                raise EndxError(f"{failure}{hint * (self._skip is not None)}") from None
            self._count += 1
            self._first = self._first or str(failure)

    @property
    def report(self) -> str:
        """Number of skipped rows and the first reason; empty if none was skipped."""
        return f"skipped {counted(self._count, 'invalid row')}, the first: {self._first}" if self._count else ""

    def log(self) -> None:
        """Logs `report` as a warning."""
        if self._count:
            LOG.warning("%s: %s", self._path, self.report)


def uncompressed(path: str) -> str:
    """Returns a file name in lower case, without `.gz`."""
    return path.lower().removesuffix(".gz")


def unknown_ending(path: str, known: Iterable[str]) -> EndxError:
    """Returns the error for a file whose ending is not among the `known` ones."""
    packed = ".gz" * path.lower().endswith(".gz")
    suffix = os.path.splitext(uncompressed(path))[1]
    text = ", ".join(name for name in known if name not in ARROW_ENDINGS)
    sheet = ', of a spreadsheet: save it as "CSV UTF-8"' * (suffix in (".xlsx", ".xls", ".xlsm", ".ods"))
    return EndxError(
        f"{path}: unknown ending {suffix + packed!r}{sheet}; known are {text}, each also with .gz, "
        f"{', '.join(ARROW_ENDINGS)}, and folders of BEIR, MS MARCO or save_to_disk"
    )


@contextlib.contextmanager
def _opened(path: str) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    """Opens a file, decompresses it if its name ends in `.gz`, and skips a byte-order mark."""
    try:
        with open(path, "rb") as raw, gzip.open(raw) if path.lower().endswith(".gz") else raw as file:
            json_files.check_contents(path, raw.peek(200)[:200])
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


def first_text_line(path: str, ignore: str = r"\A\s+") -> str:
    """Returns the first non-empty line of a text file, without its line end and without matches of `ignore`."""
    return re.split(r"[\r\n]", re.sub(ignore, "", head(path).lstrip("\r\n")), maxsplit=1)[0]


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
    """Yields (line number from 1, line with its newline) of a stream; error messages call it `name`.

    A carriage return ends a line, as in Excel's CSV for Macintosh, only if the stream has no newline.
    """
    number = 0
    while raw := stream.readline(MOST + 1):
        if len(raw) > MOST:
            raise EndxError(f"{name}, line {number + 1}: the line is longer than {MOST:,} bytes; break it up")
        for line in raw.splitlines(keepends=True) if number == 0 and not raw.endswith(b"\n") else [raw]:
            number += 1
            yield number, _decode(line, f"{name}, line {number}")


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start + 1}: 0x{raw[error.start]:02x} is not UTF-8"
        raise EndxError(f"{where}, {reason}: {conversion(raw)}") from None


def conversion(raw: bytes) -> str:
    """Returns advice on saving a text as UTF-8; `raw` is its first bytes, or its bytes that are not UTF-8."""
    is_wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    others = " (Chinese: GB18030, Japanese: CP932, Korean: CP949, Russian: CP1251)"
    encoding, others = ("UTF-16", "") if is_wide else ("WINDOWS-1252", others)
    return f'save it as UTF-8 (in Excel: "CSV UTF-8"), or run iconv -f {encoding} -t UTF-8 OLD > NEW{others}'


def limit_values(text: str, where: str, most: int = MOST_VALUES) -> None:
    """Raises EndxError if a JSON text has more than `most` values."""
    if len(text) > most and sum(map(text.count, ",[{")) > most:
        raise EndxError(f"{where}: more than {most:,} values in one line or item; break it up")


def read_json(path: str) -> dict:
    """Reads a JSON file that holds one object.

    Raises:
      EndxError: the file can't be read, holds something else, or is too large to be held in memory.
    """
    with _opened(path) as file:
        contents = file.read(json_files.MOST_BYTES + 1)
    if len(contents) > json_files.MOST_BYTES:
        raise EndxError(f"{path}: larger than {json_files.MOST_BYTES:,} bytes; break it up")
    text = _decode(contents, path)
    limit_values(text, path, most=10 * MOST_VALUES)
    return json_files.parse(text, path, dict, extra="; a file of one object a line is named .jsonl")


def holds_list(path: str) -> bool:
    """Returns true if a JSON file begins with a list."""
    return head(path, 1000).lstrip().startswith("[")


# Form of the rows of a JSON file, for messages.
OBJECTS = 'write objects, [{"question": "...", "answer": "..."}, ...] for pairs, [{"text": "..."}, ...] for a corpus'


def holds_lines(path: str) -> bool:
    """Returns true if a JSON file begins with a line of one object and another object, as a `.jsonl` file does."""
    first, _, following = head(path).lstrip().partition("\n")
    return first[:1] + first.rstrip()[-1:] == "{}" and following.lstrip().startswith("{")


def list_inside(path: str) -> tuple[str, list[dict]] | None:
    """Returns the rows in a YAML file or in a JSON file's object, and their key, empty for none; None without rows.

    They are its only list of objects, as in intents; or the object has equally long lists, which are columns.
    """
    if uncompressed(path).endswith(YAML):
        if found := _rows_in(_read_yaml(path)):
            return found
        raise EndxError(f"{path}: no list of objects; {OBJECTS}")
    if not uncompressed(path).endswith(".json") or holds_list(path) or '"paragraphs"' in head(path):
        return None
    with contextlib.suppress(EndxError):  # lines of objects, or broken: their reader raises an error with the place
        return _rows_in(read_json(path))
    return None


def _rows_in(contents: object) -> tuple[str, list[dict]] | None:
    """Returns the rows of `list_inside`."""
    fields = contents if isinstance(contents, dict) else {"": contents}
    lists = {key: value for key, value in fields.items() if isinstance(value, list) and value}
    rows = [(key, value) for key, value in lists.items() if all(isinstance(item, dict) for item in value)]
    if not rows and len(lists) == len(fields) > 1 and len({*map(len, lists.values())}) == 1:
        return "", [dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)]
    return rows[0] if len(rows) == 1 else None


def _read_yaml(path: str) -> object:
    """Returns the lists, objects and texts of a YAML file; all its scalars are texts, and tags make no objects."""
    import yaml

    class Loader(yaml.BaseLoader):
        def compose_node(self, parent, index):
            if self.check_event(yaml.AliasEvent):  # a few lines of them can stand for a billion texts
                raise yaml.MarkedYAMLError(
                    problem="an alias, which is not read", problem_mark=self.peek_event().start_mark
                )
            return super().compose_node(parent, index)

    with _opened(path) as file:
        contents = file.read(MOST_YAML + 1)
    if len(contents) > MOST_YAML:
        raise EndxError(f"{path}: larger than {MOST_YAML:,} bytes; write JSON")
    try:
        return yaml.load(_decode(contents, path), Loader)
    except (yaml.YAMLError, RecursionError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise EndxError(f"{path}{place}: broken YAML: {problem or type(error).__name__}") from None


def items(path: str) -> Iterator[tuple[int, dict]]:
    """Yields (number of its first line, object) for each object of the list in a JSON file, one at a time.

    Raises:
      EndxError: the file is invalid, or an item is too large or no object.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, at, line, following = "", 0, 1, "["  # `following`: characters that may come next
    with _opened(path) as file:
        while True:
            start = _NOT_SPACE.search(text, at)
            after = start.start() if start else len(text)
            line, at = line + text.count("\n", at, after), after
            where = f"{path}, line {line}"
            if start and start[0] not in following:
                expected = " or ".join(following) or "the end of the file"
                hint = f"; {OBJECTS}" * ("{" in following)
                raise EndxError(f"{where}: broken JSON: {start[0]!r} where {expected} is expected{hint}")
            if start and start[0] == "{":
                if (decoded := _decode_object(text, at, path, line)) is not None:
                    item, end = decoded
                    yield line, item
                    line, at, following = line + text.count("\n", at, end), end, ",]"
                    continue
            elif start:
                at, following = at + 1, {"[": "{]", ",": "{", "]": ""}[start[0]]
                continue
            if len(text) - at > MOST:
                raise EndxError(f"{where}: an item of the list is longer than {MOST:,} characters; break it up")
            block = file.read(max(_BLOCK, len(text) - at))  # an item is decoded few times, since the text doubles
            if not block and following:
                if start:
                    _decode_object(text, at, path, line, ended=True)
                raise EndxError(f"{where}: the file ends inside what begins here; fetch it again")
            if not block:
                return
            try:
                text, at = text[at:] + decoder.decode(block), 0
            except UnicodeDecodeError as error:
                reason = f"0x{error.object[error.start]:02x} is not UTF-8: {conversion(error.object)}"
                raise EndxError(f"{path}, after line {line}: {reason}") from None
            limit_values(text, where)


def _decode_object(text: str, start: int, path: str, line: int, *, ended: bool = False) -> tuple[dict, int] | None:
    """Returns the JSON object at `start` of a text and its end; None if the text is cut inside it, unless `ended`."""
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        is_last = not text[error.pos :].strip() if ended else error.pos > len(text) - len("-Infinity")
        if is_last or error.msg.startswith("Unterminated string"):
            return None
        line += text.count("\n", start, error.pos)
        raise EndxError(f"{path}, line {line}: broken JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise json_files.decoder_error(error, f"{path}, line {line}") from None
