"""Downloads of models and data sets from the Hugging Face hub into its cache, and of data from buckets."""

import functools
import glob
import os
import pathlib
from collections.abc import Sequence

from endx_jax.buckets import local_copy, url_of
from endx_jax.errors import EndxError
from endx_jax.files import expanded

PATIENCE = 10.0  # seconds
# Errors of the hub's client about responses that are not the hub's, such as a login page or a list.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError)
DATA = "hf://datasets/"  # prefix of the paths of data sets, as in `datasets`, pandas and `hf`
# Files of a data set that are downloaded, with or without `.gz`.
DATA_ENDINGS = (".parquet", ".arrow", ".feather", ".jsonl", ".json", ".csv", ".tsv")


def download(
    name: str, patterns: Sequence[str], *, what: str, remedy: str, dataset: bool = False, revision: str | None = None
) -> pathlib.Path:
    """Returns the folder in the hub's cache with the files of a repository, offline if the hub can't be reached.

    Args:
      name: `OWNER/NAME`.
      patterns: patterns of the files to download, also in subfolders.
      what: beginning of the message of an error, which names the repository.
      remedy: end of the message.
      dataset: true for a data set, false for a model.
      revision: branch, tag or commit; None for the main branch.

    Raises:
      EndxError: the files are neither downloaded nor in the cache.
    """
    import huggingface_hub.constants
    from huggingface_hub.errors import HTTPError, IncompleteSnapshotError

    expanded(huggingface_hub.constants.HF_HUB_CACHE, "set HF_HOME")  # the hub's client would make a folder `~`
    # Errors of the hub, of the connection, and of malformed ids.
    failures = (OSError, HTTPError, *MALFORMED)
    reason = None
    try:
        # Request this first: snapshot_download waits forever for a hub that does not answer.
        (huggingface_hub.dataset_info if dataset else huggingface_hub.model_info)(name, timeout=PATIENCE)
    except failures as failure:
        reason = type(failure).__name__
    try:
        folder = huggingface_hub.snapshot_download(
            name,
            repo_type="dataset" if dataset else "model",
            revision=revision or None,
            allow_patterns=list(patterns),
            local_files_only=reason is not None,
        )
        return pathlib.Path(folder)
    except failures as failure:
        part = "is in the hub's cache only in part and " if isinstance(failure, IncompleteSnapshotError) else ""
        reason = reason or type(failure).__name__
        raise EndxError(f"{what} {part}cannot be downloaded from the hub ({reason}): {remedy}") from None


def local_path(path: str) -> str:
    """Returns the local path of data at `path`, which is copied first if it is on the hub or in a bucket; expands `~/`.

    Args:
      path: local path, `hf://datasets/OWNER/NAME[@REVISION][/PATH]`, `gs://BUCKET/PATH` or `s3://BUCKET/PATH`.

    Raises:
      EndxError: the data set can't be downloaded and is not in the cache, or has no such file or folder.
    """
    if path.startswith("~/") or url_of(path):
        return str(local_copy(path))  # which looks for changes in a bucket each time
    return dataset_path(path) if path.startswith(DATA) else path


@functools.cache
def dataset_path(path: str) -> str:
    """Returns the path of a data set of the hub, or of a folder in it, in the hub's cache; asks the hub once."""
    owner, name, inside = (*path.removeprefix(DATA).strip("/").split("/", 2), "", "")[:3]
    name, _, revision = name.partition("@")
    files = f"{inside}/*" if inside else "*"
    patterns = [f"{files}{ending}{packed}" for ending in DATA_ENDINGS for packed in ("", ".gz")]
    remedy = f"check the name, {DATA}OWNER/NAME or a folder in it, and the connection; a private data set needs "
    folder = download(
        f"{owner}/{name}",
        [inside, *patterns] if inside else patterns,
        what=path,
        remedy=remedy + "`hf auth login`",
        dataset=True,
        revision=revision,
    )
    local = str(folder / inside)
    if not (os.path.exists(local) or glob.glob(local)):
        raise EndxError(f"{path}: no {', '.join(DATA_ENDINGS)} file there; name another folder of the data set")
    return local
