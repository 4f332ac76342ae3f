"""Reader of word vectors in GloVe's and fastText's text formats."""

import gzip
import pathlib
import zlib
from collections.abc import Iterator

import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError

ENDINGS = (".txt", ".vec", ".txt.gz", ".vec.gz")
# Maximum length in bytes of a line, which holds a word and its numbers.
LONGEST_LINE = 1_000_000


def is_word_vectors(path: pathlib.Path) -> bool:
    """Returns true if a file exists and is named like word vectors."""
    return path.name.endswith(ENDINGS) and path.is_file()


def read_word_vectors(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    """Reads V words and their vectors, float32 [V, D].

    A line holds a word and its D numbers (GloVe); a first line of two numbers is skipped (fastText). The numbers are
    the last D fields of a line, as a few words of GloVe 840B contain spaces.

    Raises:
      EndxError: the file can't be read or has another format; the message names the line.
    """
    words, rows, width = [], [], 0
    for number, line in _lines(path):
        if number == 1:
            width = line.count(" ")
            if width == 1 and len(line) < 40 and line.replace(" ", "").isdecimal():
                width = int(line.split(" ")[1])
                continue
        word, *fields = line.rsplit(" ", width)
        try:
            with np.errstate(over="raise"):
                row = np.array(fields, np.float32)
        except (ValueError, FloatingPointError):
            row = np.zeros(0, np.float32)
        if len(row) != width or not width or not word or not np.isfinite(row).all():
            raise EndxError(f"{path}, line {number}: expected a word and {width} numbers, separated by single spaces")
        words.append(word)
        rows.append(row)
    if not words:
        raise EndxError(f"{path} has no word vectors: each line must have a word and its numbers")
    return words, np.stack(rows)


def _lines(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    try:
        json_files.check_contents(path)
        with gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE), b""), start=1):
                if len(line) == LONGEST_LINE:
                    raise EndxError(f"{path}, line {number} is longer than {LONGEST_LINE:,} bytes")
                yield number, line.decode("utf-8").rstrip("\r\n").rstrip(" ")
    except EndxError:
        raise
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as failure:
        raise EndxError(f"{path} can't be read as word vectors: {failure}") from None
