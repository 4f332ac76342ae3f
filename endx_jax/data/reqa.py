"""Conversion of reading-comprehension data to sentence retrieval as in ReQA (Ahmad et al. 2019)."""

import itertools
import os
from collections.abc import Sequence

from endx_jax.data.formats import registry
from endx_jax.data.sets.paragraphs import Conversion, convert_paragraphs
from endx_jax.data.sets.records import RetrievalSet

Path = str | os.PathLike


def from_squad(path: Path, pool: str = "answers", *, skip_invalid: bool = False) -> RetrievalSet:
    """Reads reading-comprehension data as questions and the sentences that answer them: see `convert`."""
    return convert(path, pool, skip_invalid=skip_invalid).records


def convert(
    paths: Path | Sequence[Path], pool: str = "answers", *, skip_invalid: bool = False, split: str | None = None
) -> Conversion:
    """Converts reading-comprehension data: see `convert_paragraphs`.

    Args:
      paths: file or folder in a format of `registry.read_paragraphs`, or several, which are concatenated.
      pool: `answers` or `sentences`.
      skip_invalid: see `registry.read_paragraphs`.
      split: see `registry.read_paragraphs`.

    Raises:
      EndxError: the format is unknown, the pool is unknown, or no answer starts in a sentence.
    """
    names = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    parts = (registry.read_paragraphs(name, skip_invalid=skip_invalid, split=split) for name in names)
    return convert_paragraphs(itertools.chain.from_iterable(parts), names, pool)
