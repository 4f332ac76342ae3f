"""Reads each token's vectors in each layer, as they were computed elsewhere for a file of texts: ELMo's, for one.

AllenNLP's `allennlp elmo TEXTS OUTPUT.hdf5 --all` writes, for each line of its input, the dataset `0`, `1`, ... of
shape [K, T, W], with K = 3 layers, the token layer first, and T tokens; with `--average` or `--top` one layer, [T, W].
"""

import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from endx_jax.errors import EndxError


def is_token_vectors(path: pathlib.Path) -> bool:
    """Returns true if a file name is one of token vectors."""
    return path.name.endswith((".hdf5", ".h5")) and path.is_file()


def read_token_vectors(path: pathlib.Path, lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Yields the vectors of each text, float32 [K, T, W].

    Args:
      path: the file.
      lengths: tokens of each of the N texts that it was made of, in order.

    Raises:
      EndxError: when the file can't be read, or was made of other texts.
    """
    try:
        import h5py
    except ImportError:
        raise EndxError(f"{path} needs h5py: `pip install h5py`") from None
    try:
        file = h5py.File(path, "r")
    except OSError as failure:
        raise EndxError(f"{path} can't be read as HDF5: {failure}") from None
    with file:
        count = sum(name.isdecimal() for name in file)
        if count != len(lengths):
            raise EndxError(
                f"{path} holds the vectors of {count} texts where {len(lengths)} were asked for: make it anew"
            )
        for number, length in enumerate(lengths):
            if str(number) not in file:
                raise EndxError(f"{path} lacks the dataset {str(number)!r}, of the text on line {number + 1}")
            vectors = np.asarray(file[str(number)][()], np.float32)
            vectors = vectors[None] if vectors.ndim == 2 else vectors
            if vectors.ndim != 3 or vectors.shape[1] != length:
                raise EndxError(
                    f"{path}, text {number}: vectors of shape {vectors.shape}, where layers of {length} tokens are "
                    "expected: make it anew from the texts of `endx papers layers --write-texts`"
                )
            yield vectors
