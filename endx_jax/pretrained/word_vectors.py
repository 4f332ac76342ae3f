"""Reader of word vectors: GloVe's and fastText's text formats, and NumPy arrays with a list of words."""

import gzip
import pathlib
import tokenize
import warnings
import zlib
from collections.abc import Iterator

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.json_files import shown

TEXT = (".txt", ".vec", ".txt.gz", ".vec.gz")
ARRAY = ".npy"
# Maximum length in bytes of a line, which holds a word and its numbers.
LONGEST_LINE = 1_000_000
# Exceptions raised by NumPy for a damaged header, which is a Python literal.
DAMAGED = (OSError, ValueError, EOFError, SyntaxError, TypeError, LookupError, OverflowError, MemoryError)


def read_word_vectors(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    """Reads V words and their vectors, float32 [V, D], from a text file or a NumPy array.

    Raises:
      EndxError: the file can't be read or has another format; the message names the line.
    """
    return _read_array(path) if path.name.endswith(ARRAY) else _read_text(path)


def is_word_vectors(path: pathlib.Path) -> bool:
    """Returns true if a file exists and is named like word vectors."""
    array = path.name.endswith(ARRAY) and _words_beside(path).is_file()
    return (path.name.endswith(TEXT) or array) and path.is_file()


def _read_text(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    """Reads lines of a word and its D numbers (GloVe); skips a first line of two numbers (fastText).

    The numbers are the last D fields of a line, as a few words of GloVe 840B contain spaces.
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
        with gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE), b""), start=1):
                if len(line) == LONGEST_LINE:
                    raise EndxError(f"{path}, line {number} is longer than {LONGEST_LINE:,} bytes")
                yield number, line.decode("utf-8").rstrip("\r\n").rstrip(" ")
    except EndxError:
        raise
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as failure:
        raise EndxError(f"{path} can't be read as word vectors: {failure}") from None


def _read_array(path: pathlib.Path) -> tuple[list[str], np.ndarray]:
    """Reads an array [V, D] and the V words in the lines of `NAME.words.txt` in the same folder."""
    beside = _words_beside(path)
    vectors = map_array(path)
    try:
        words = beside.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as failure:
        raise EndxError(f"{path} needs {beside.name} in the same folder: {failure}") from None
    if vectors.ndim != 2 or len(vectors) != len(words):
        raise EndxError(
            f"{path} has shape {vectors.shape} and {beside.name} {len(words)} words; expected a row per word"
        )
    with np.errstate(over="ignore"):  # to infinity
        vectors = vectors.astype(np.float32)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(finite.argmin())
        raise EndxError(f"{path} holds NaN or infinity in row {row}, the vector of {shown(words[row])}")
    return words, vectors


def map_array(path: pathlib.Path) -> np.ndarray:
    """Memory-maps an array of numbers in an `.npy` file.

    Raises:
      EndxError: the file can't be read, is truncated, or does not contain an array of numbers.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # about headers written by Python 2, which are read all the same
            array = np.lib.format.open_memmap(path, mode="r")
    except (*DAMAGED, tokenize.TokenError) as failure:
        reason = next(iter(str(failure).splitlines()), type(failure).__name__)[:300]
        raise EndxError(f"{path} can't be read as an array: {reason}") from None
    if array.dtype.kind not in "fiu":
        raise EndxError(f"{path} has dtype {array.dtype.name[:80]}; expected numbers")
    return array


def _words_beside(path: pathlib.Path) -> pathlib.Path:
    return path.with_suffix(".words.txt")
