"""Reading-comprehension data of any known layout, as paragraphs."""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator

from endx_jax.data.paragraphs import Paragraph, merged_set, unmerged_set
from endx_jax.data.readers import mrqa, multireqa, natural_questions, squad
from endx_jax.data.readers.layout import MRQA, MULTIREQA, NATURAL_QUESTIONS, SQUAD, layout
from endx_jax.data.records import RetrievalSet
from endx_jax.errors import EndxError

READERS: dict[str, Callable[[str], Iterable[Paragraph]]] = {
    SQUAD: squad.paragraphs,
    MRQA: mrqa.paragraphs,
    NATURAL_QUESTIONS: natural_questions.paragraphs,
    MULTIREQA: multireqa.paragraphs,
}


def holds_paragraphs(path: str) -> bool:
    """Whether there is reading-comprehension data at the path, so that `data.pool` applies to it.

    Raises:
      EndxError: there is nothing at the path, or what decides can't be read.
    """
    return layout(path) in READERS


def paragraphs(path: str) -> Iterator[Paragraph]:
    """Yields the paragraphs of a file or folder in its order and unmerged.

    Raises:
      EndxError: there is no such data, or they are broken, named by line or key.
    """
    found = layout(path)
    if found not in READERS:
        raise EndxError(f"{path}: no reading-comprehension data but {found}; known are {', '.join(READERS)}")
    yield from READERS[found](path)


def read(path: str | os.PathLike) -> RetrievalSet:
    """Reads whole paragraphs as candidates, equal questions merged: see `merged_set`."""
    path = os.fspath(path)
    return merged_set(paragraphs(path), path)


def read_unmerged(*paths: str) -> RetrievalSet:
    """Reads whole paragraphs as candidates, each question apart: see `unmerged_set`.

    Args:
      *paths: files, one after another; candidates are counted over all.
    """
    return unmerged_set(itertools.chain.from_iterable(map(paragraphs, paths)), " and ".join(paths))
