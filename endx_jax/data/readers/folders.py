"""Finds the files of a data set in a folder, under their published names, and one split of several."""

import glob
import os
from collections.abc import Sequence

from endx_jax.errors import EndxError


def find(folder: str | os.PathLike, names: Sequence[str]) -> list[list[str]]:
    """The files of a folder, for each of `names` those that are there, in order of their names and at least one.

    Args:
      folder: where they are.
      names: paths inside it, each perhaps with `*`, and perhaps several alternatives with `|` between, of which the
        first that is there counts. Files may also be there as `.gz`.

    Raises:
      EndxError: there is no such folder, or a file is not in it, named.
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
    """The split that is asked for, or the only one that is there.

    Raises:
      EndxError: it is not there; or none is asked for, and there are several.
    """
    if split is None and len(found) > 1:
        raise EndxError(f"{where}: several splits; give one of them as split: {', '.join(found)}")
    if split is not None and split not in found:
        raise EndxError(f"{where}: no split {split!r}; choose with data.split or --split from {', '.join(found)}")
    return split or found[0]


def _files(folder: str, name: str) -> list[str]:
    pattern = os.path.join(glob.escape(folder), name)
    plain = glob.glob(pattern)
    packed = [path for path in glob.glob(f"{pattern}.gz") if path.removesuffix(".gz") not in plain]
    return sorted(path for path in plain + packed if os.path.isfile(path))
