"""Check of an export's output folder."""

import pathlib

from endx_jax.errors import EndxError
from endx_jax.experiment.workdir import check_writable

REPORT = "export_report.json"


def check_output(folder: pathlib.Path) -> None:
    """Raises EndxError if `folder` contains anything but an older export, or can't be written."""
    if folder.exists() and not folder.is_dir():
        raise EndxError(f"--output={folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / REPORT).is_file():
        raise EndxError(f"--output={folder} contains files that are not an export; name a new folder, or empty it")
    check_writable(folder, "--output")
