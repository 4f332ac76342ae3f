"""Prepared data sets `reqa/...` and `multireqa/...`: converted once with tensorflow-datasets, read with Grain."""

import contextlib
import io
import itertools
import os
import pathlib
from typing import TYPE_CHECKING, Any

from endx_jax.data.origins import ORIGINS, SPLITS
from endx_jax.data.readers.text_files import find
from endx_jax.data.records import RetrievalSet
from endx_jax.data.reqa import from_articles
from endx_jax.errors import EndxError
from endx_jax.settings import check_choice

if TYPE_CHECKING:
    from endx_jax.data.reqa_builder import Reqa


NAMES = tuple(ORIGINS)

# Maximum bytes that `ensure` downloads; larger sets need an explicit `prepare`.
LARGE = 1e9

# Source files for each of `SPLITS`.
Sources = tuple[list[str], ...]


def prepare(
    name: str = "reqa/squad",
    *,
    source: str | os.PathLike | None = None,
    data_dir: str | os.PathLike | None = None,
    progress: bool = False,
) -> pathlib.Path:
    """Prepares a set, unless it exists already.

    The set is written atomically, also if several processes prepare it at once.

    Args:
      name: one of `NAMES`.
      source: folder with the source files, under the names in `ORIGINS`. None uses an existing set, made from any
        files, or downloads the published files and checks their hashes.
      data_dir: folder of tensorflow-datasets; by default `TFDS_DATA_DIR`, or `~/tensorflow_datasets`.
      progress: true to show progress bars.

    Returns:
      The folder of the prepared set.

    Raises:
      EndxError: `source` lacks a file or is malformed, the set was prepared from other files, the download fails, or
        `data_dir` can't be written to.
    """
    check_choice("the prepared set", name, NAMES)
    sources = None if source is None else _find(name, source)
    builder = _builder(name, data_dir, sources)
    if not _is_whole(builder):
        _generate(builder, progress)
    if sources:
        _check_made_from(sources, _builder(name, data_dir))
    return pathlib.Path(builder.data_dir)


def ensure(name: str, *, data_dir: str | os.PathLike | None = None, progress: bool = False) -> None:
    """Prepares a set if it does not exist and its download is not large.

    Raises:
      EndxError: more than `LARGE` bytes must be downloaded, or `prepare` fails.
    """
    size = sum(file.size for files in ORIGINS[name].published() for file in files)
    if size > LARGE and not _is_whole(_builder(name, data_dir)):
        raise EndxError(
            f"{name} is not prepared, and its files are {size / 1e9:.1f} GB: download them with `endx prepare {name}`, "
            f"or give a folder of them, `endx prepare {name} --source=FOLDER`"
        )
    prepare(name, data_dir=data_dir, progress=progress)


def is_prepared(name: str, *, data_dir: str | os.PathLike | None = None) -> bool:
    """Returns true if a set is prepared."""
    return _is_whole(_builder(name, data_dir))


def read(name: str, split: str, *, data_dir: str | os.PathLike | None = None, progress: bool = False) -> RetrievalSet:
    """Reads a split with the pool of all sentences, as made by `reqa.convert_paragraphs`; prepares the set if needed.

    Args:
      name: one of `NAMES`.
      split: `train` or `validation`.
      data_dir: as in `prepare`.
      progress: true to show progress bars while preparing.

    Raises:
      EndxError: `ensure` fails, or the prepared files are damaged.
    """
    import grain

    check_choice(f"the split of {name}", split, SPLITS)
    ensure(name, data_dir=data_dir, progress=progress)
    builder = _builder(name, data_dir)
    try:
        articles = grain.MapDataset.source(builder.as_data_source(split))
        return from_articles(articles[number] for number in range(len(articles)))
    except RuntimeError as failure:
        # ArrayRecord's messages may have several lines.
        reason = str(failure).partition("\n")[0]
        raise EndxError(f"{builder.data_dir} is damaged ({reason}); remove the folder and prepare it again") from None


def summary(name: str, *, data_dir: str | os.PathLike | None = None) -> dict[str, dict[str, Any]]:
    """Returns the counts of a prepared set by split, with `sha256` and `published` of its source files."""
    return dict(_builder(name, data_dir).info.metadata)


def _find(name: str, source: str | os.PathLike) -> Sources:
    """Returns the source files of each split in a folder."""
    train, validation = ORIGINS[name].names
    found = find(source, [*train, *validation])
    return tuple(list(itertools.chain(*part)) for part in (found[: len(train)], found[len(train) :]))


def _builder(name: str, data_dir: str | os.PathLike | None, sources: Sources | None = None) -> "Reqa":
    from endx_jax.data.reqa_builder import BUILDERS

    kind, _, config = name.partition("/")
    where = None if data_dir is None else pathlib.Path(data_dir).expanduser()
    return BUILDERS[kind](config=config, data_dir=where, sources=sources)


def _is_whole(builder: "Reqa") -> bool:
    # Unlike `builder.is_prepared()`, this prints no warning for sets that are not prepared.
    return os.path.isfile(os.path.join(builder.data_dir, "dataset_info.json"))


def _generate(builder: "Reqa", progress: bool) -> None:
    import tensorflow_datasets as tfds

    if os.path.exists(builder.data_dir):
        raise EndxError(
            f"{builder.data_dir} exists but is not a complete data set; remove the folder and prepare it again"
        )
    tfds.display_progress_bar(progress)
    settings = tfds.download.DownloadConfig(force_checksums_validation=True, try_download_gcs=False)
    try:
        # It prints to standard output.
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare(download_config=settings)
    except OSError as failure:
        # Another process may have written the folder first.
        if not _is_whole(builder):
            raise EndxError(f"can't write {builder.data_dir}: {failure.strerror or failure}") from None


def _check_made_from(sources: Sources, builder: "Reqa") -> None:
    from endx_jax.data.reqa_builder import digest

    for split, files in zip(SPLITS, sources, strict=True):
        made_from, found = builder.info.metadata[split]["sha256"], digest(files)
        if found != made_from:
            others = f"another file than {files[0]}" if len(files) == 1 else f"other files than {files[0]} and the rest"
            raise EndxError(
                f"{builder.data_dir} was made from {others} (sha256 {made_from[:12]}..., here {found[:12]}...): remove "
                "that folder to prepare it again, or choose another one with --data-dir=DIR"
            )
