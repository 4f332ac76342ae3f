"""The folder that an export is written into: whole or not there."""

import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from endx_jax.errors import EndxError
from endx_jax.experiment.workdir import check_writable

REPORT = "export_report.json"


def check_output(folder: pathlib.Path) -> None:
    """Raises EndxError when `folder` holds anything but an older export, or can't be written."""
    if folder.exists() and not folder.is_dir():
        raise EndxError(f"--output={folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / REPORT).is_file():
        raise EndxError(f"--output={folder} holds something else than an export; name a new folder, or empty it")
    check_writable(folder, "--output")


@contextlib.contextmanager
def aside(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Gives an empty folder beside `folder` to write into, which is gone after the block unless it was moved."""
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    fresh = pathlib.Path(tempfile.mkdtemp(dir=folder.absolute().parent, prefix=f".{folder.name}."))
    try:
        fresh.chmod(0o755)
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def put_in_place(fresh: pathlib.Path, folder: pathlib.Path) -> None:
    """Makes `fresh` be `folder`; an older export there is whole until the new one stands in its place."""
    with aside(folder) as old:
        if folder.exists():
            folder.rename(old / "replaced")
        fresh.rename(folder)
