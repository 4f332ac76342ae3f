"""A run's folder: what is in it, and whether a run may go on in it."""

import json
import pathlib
import tempfile

from endx_jax.errors import EndxError
from endx_jax.experiment.config import Settings, differences, resolve
from endx_jax.experiment.manifest import manifest
from endx_jax.files import write_text

CONFIG, DATA, MANIFEST, MODEL, INDEX, EVALUATION, RESULTS, PROFILE, PROFILE_NOW = (
    "config.json",
    "data.json",
    "manifest.json",
    "model",
    "index",
    "evaluation",
    "results.json",
    "profile",
    "profile-now",
)


def check_writable(folder: pathlib.Path, flag: str = "--workdir") -> None:
    """Raises EndxError, naming the `flag` that chose it, when `folder` can't be made or written; makes nothing."""
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as failure:
        raise EndxError(f"{folder} can't be written ({failure.strerror}); choose another with {flag}") from None


def read_config(workdir: pathlib.Path) -> Settings:
    """The settings of the run in a workdir.

    Raises:
      EndxError: when there is no run.
    """
    try:
        return resolve(json.loads((workdir / CONFIG).read_text()))
    except FileNotFoundError:
        raise EndxError(f"{workdir} holds no run: it has no {CONFIG}") from None
    except json.JSONDecodeError as failure:
        raise EndxError(f"{workdir / CONFIG} is not JSON: {failure}") from None


def check_agrees(workdir: pathlib.Path, settings: Settings, fingerprint: str) -> None:
    """Raises EndxError when the workdir's run was made with other settings, or from other data."""
    if not (workdir / CONFIG).exists():
        return
    found = differences(read_config(workdir), settings)
    if found:
        raise EndxError(
            f"{workdir} holds a run with other settings ({'; '.join(found)}): choose another --workdir, or give those"
        )
    data = workdir / DATA
    if data.exists() and json.loads(data.read_text())["sha256"] != fingerprint:
        raise EndxError(
            f"{workdir} holds a run that began with other data: choose another --workdir, or restore the data"
        )


def write_config(workdir: pathlib.Path, settings: Settings, data: dict) -> None:
    """Writes `config.json`, resolved; `data.json`, counts and the hash of all texts; and `manifest.json`."""
    contents = {CONFIG: settings.as_dict(), DATA: data, MANIFEST: manifest(settings.seed, data)}
    for name, content in contents.items():
        write_text(workdir / name, json.dumps(content, indent=1) + "\n")
