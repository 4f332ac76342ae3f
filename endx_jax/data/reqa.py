"""Conversion of reading-comprehension data to sentence retrieval as in ReQA (Ahmad et al. 2019)."""

import itertools
import os
from collections.abc import Sequence

from endx_jax.data.formats import ReadOptions, open_data
from endx_jax.data.formats.registry import Path
from endx_jax.data.sets.paragraphs import Conversion, convert_paragraphs
from endx_jax.data.sets.records import RetrievalSet

__all__ = ["convert", "from_squad"]


def from_squad(path: Path, pool: str = "answers", *, skip_invalid: bool = False) -> RetrievalSet:
    """Reads reading-comprehension data as questions and the sentences that answer them: see `convert`."""
    return convert(path, pool, skip_invalid=skip_invalid).records


def convert(paths: Path | Sequence[Path], pool: str = "answers", **options) -> Conversion:
    """Converts reading-comprehension data: see `convert_paragraphs`.

    Args:
      paths: file or folder of reading-comprehension data, or several, which are concatenated.
      pool: `answers` or `sentences`.
      **options: `skip_invalid` and `split`: see `ReadOptions`.

    Raises:
      EndxError: the data are of another format, the pool is unknown, or no answer starts in a sentence.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    parts = (open_data(name, ReadOptions(**options)).paragraphs() for name in names)
    return convert_paragraphs(itertools.chain.from_iterable(parts), names, pool)
