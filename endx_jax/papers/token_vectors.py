"""Reads each token's vectors in each layer, as they were computed elsewhere for a file of texts: ELMo's, for one.

AllenNLP's `allennlp elmo TEXTS OUTPUT.hdf5 --all` writes, for each line of its input, the dataset `0`, `1`, ... of
shape [K, T, W], with K = 3 layers, the token layer first, and T tokens; with `--average` or `--top` one layer, [T, W].
An array in an `.npy` file is the same end to end, [T of all texts, K, W], as RR stacks its tensor (section 3.1).
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from endx_jax.errors import EndxError
from endx_jax.pretrained.word_vectors import is_word_vectors, map_array

HDF5, ARRAY = (".hdf5", ".h5"), ".npy"


def is_token_vectors(path: pathlib.Path) -> bool:
    """Returns true if a file name is one of token vectors rather than word vectors."""
    return path.name.endswith((*HDF5, ARRAY)) and path.is_file() and not is_word_vectors(path)


def read_token_vectors(path: pathlib.Path, lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields the vectors of each text, float32 [K, T, W].

    Args:
      path: the file.
      lengths: tokens of each of the N texts that it was made of, in order.

    Raises:
      EndxError: when the file can't be read, or was made of other texts.
    """
    with contextlib.ExitStack() as stack:
        count, read = (_open_array if path.name.endswith(ARRAY) else _open_hdf5)(path, lengths, stack)
        if count != len(lengths):
            raise EndxError(
                f"{path} holds the vectors of {count} texts where {len(lengths)} were asked for: make it anew"
            )
        for number, length in enumerate(lengths):
            vectors = np.asarray(read(number), np.float32)
            vectors = vectors[None] if vectors.ndim == 2 else vectors
            if vectors.ndim != 3 or vectors.shape[1] != length:
                raise EndxError(
                    f"{path}, text {number}: vectors of shape {vectors.shape}, where layers of {length} tokens are "
                    "expected: make it anew from the texts of `endx papers layers --write-texts`"
                )
            yield vectors


Reader = tuple[int, Callable[[int], np.ndarray]]


def _open_hdf5(path: pathlib.Path, lengths: Sequence[int], stack: contextlib.ExitStack) -> Reader:
    del lengths
    try:
        import h5py
    except ImportError:
        raise EndxError(f"{path} needs h5py: `pip install h5py`") from None
    try:
        file = stack.enter_context(h5py.File(path, "r"))
    except OSError as failure:
        raise EndxError(f"{path} can't be read as HDF5: {failure}") from None
    count = sum(name.isdecimal() for name in file)

    def read(number: int) -> np.ndarray:
        if str(number) not in file:
            raise EndxError(f"{path} lacks the dataset {number!r}, of the text on line {number + 1}")
        return file[str(number)][()]

    return count, read


def _open_array(path: pathlib.Path, lengths: Sequence[int], stack: contextlib.ExitStack) -> Reader:
    del stack
    stacked = map_array(path)
    ends = np.cumsum(lengths)
    if stacked.ndim != 3 or len(stacked) != ends[-1]:
        raise EndxError(
            f"{path} has the shape {stacked.shape}, where [{ends[-1]}, layers, width] is expected: a row for each token"
        )
    return len(lengths), lambda number: np.moveaxis(stacked[ends[number] - lengths[number] : ends[number]], 0, 1)
