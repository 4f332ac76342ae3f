"""Workdir of a run: its files, the check that a run may resume in it, and the lock against a second run."""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from endx_jax import json_files
from endx_jax.buckets import (
    NOT_COPIED,
    NOT_OF_MODEL,
    bucket_errors,
    filesystem,
    local_copy,
    read_bytes,
    remove,
    url_of,
)
from endx_jax.errors import EndxError, InUse, RunInterrupted
from endx_jax.files import (
    check_replaceable,
    expanded,
    holder_of,
    locked,
    repeating,
    signature,
    staging_folder,
    write_text,
)
from endx_jax.inference.manifest import MANIFEST as MODEL_MANIFEST
from endx_jax.inference.manifest import MODEL, model_folder
from endx_jax.parallel.agreement import on_primary
from endx_jax.parallel.console import say
from endx_jax.parallel.distributed import exit_now, is_primary
from endx_jax.parallel.environment import environment
from endx_jax.uploads import Mirror, naming, try_writing

if TYPE_CHECKING:
    from endx_jax.experiment.config import Settings

LOCK = ".lock"
CONFIG, DATA, MANIFEST, RESULTS = "config.json", "data.json", "manifest.json", "results.json"
PAGE = "results.html"
INDEX, EVALUATION, PROFILE = "index.sqlite", "evaluation", "profile"
TEST = "test"  # folder in EVALUATION of the rankings of the test set by the run itself
GROWING = ("metrics.jsonl", "tensorboard/*")  # uploaded every few seconds


class Workdir(os.PathLike):
    """Folder of a run, and the local folder that holds its files if it is in a bucket.

    `workdir / name` is a local path. `str(workdir)` and `os.fspath(workdir)` are the path that the user gave, where the
    checkpoints are, which Orbax writes into buckets itself.
    """

    def __init__(self, path: str | os.PathLike, mirror: Mirror | None = None):
        """Takes the path that the user gave and, for a bucket, its mirror."""
        self._path, self._mirror = url_of(path) or str(expanded(path)), mirror
        self.folder = mirror.folder if mirror else expanded(path)

    def __fspath__(self) -> str:
        return self._path

    __str__ = __fspath__

    def __truediv__(self, name: str) -> pathlib.Path:
        return self.folder / name

    def upload(self) -> None:
        """Uploads what has changed, if the folder is in a bucket; each process uploads what it wrote.

        Raises:
          EndxError, RunInterrupted: the bucket can't be written to.
        """
        if self._mirror:
            self._mirror.upload()


Folder = pathlib.Path | Workdir


def read_json(workdir: Folder | os.PathLike | str, name: str) -> dict:
    """Reads a JSON file of a run, alone if it is in a bucket; returns an empty dictionary if there is none."""
    if not isinstance(workdir, Workdir) and (url := url_of(workdir)):
        return json_files.parse(read_bytes(f"{url}/{name}") or b"{}", f"{url}/{name}", dict)
    return json_files.read_optional((workdir if isinstance(workdir, Workdir) else local_copy(workdir)) / name)


def saved_system(workdir: str | os.PathLike) -> str:
    """Returns which system a run's model is: `trained`, or `untrained` if that was better."""
    name = f"{MODEL}/{MODEL_MANIFEST}"
    return json_files.text_at(read_json(workdir, name), "system", name, "trained")


def check_writable(folder: os.PathLike, flag: str = "workdir") -> None:
    """Raises EndxError, which names `flag`, if `folder` can't be created or written; creates nothing."""
    if url := url_of(folder):
        return try_writing(url)
    absolute = pathlib.Path(folder).absolute()
    # `lexists` is true for broken symbolic links, which prevent the folder from being created.
    nearest = next(path for path in (absolute, *absolute.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as failure:
        raise EndxError(f"{folder} can't be written ({failure.strerror}); choose another {flag}") from None


def check_output(folder: pathlib.Path, report: str, verb: str) -> None:
    """Raises EndxError if `folder` can't be written, or holds files without the `report` that `endx VERB` writes."""
    check_replaceable(folder)
    if folder.exists() and not folder.is_dir():
        raise EndxError(f"output={folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / report).is_file():
        reason = f"holds files that `endx {verb}` did not write"
        raise EndxError(f"output={folder} {reason}; name a new folder, or empty it")
    check_writable(folder, "output")


def read_config(workdir: Folder | os.PathLike) -> "Settings":
    """Reads the settings of the run in a workdir.

    Raises:
      EndxError: the workdir holds no run.
    """
    contents = read_json(workdir, CONFIG)
    if not contents:
        is_missing = not (url_of(workdir) or expanded(workdir).exists())
        raise EndxError(f"{workdir} holds no run: {'no such folder' if is_missing else f'it has no {CONFIG}'}")
    if "objective" not in contents:
        raise EndxError(f"{workdir} is a pretrained model, not a run: pass it as model=")
    from endx_jax.experiment.config import resolve  # with all that trains, which a search does not need

    return resolve(contents, finished=True)


def read_data(workdir: Folder) -> dict:
    """Reads a run's `data.json`: `sha256` of its training data, and counts.

    Raises:
      EndxError: the file can't be read, or has no hash.
    """
    contents = read_json(workdir, DATA)
    json_files.text_at(contents, "sha256", str(workdir / DATA))
    return contents


def run_index(workdir: str | os.PathLike) -> str | os.PathLike:
    """Returns the path of the index that the last evaluation of a run wrote, which may be in a bucket.

    Raises:
      EndxError: there is no run, its training has not ended, or its model has no embeddings.
    """
    local, url = local_copy(workdir, skip=NOT_OF_MODEL), url_of(workdir)
    if not model_folder(local):
        read_config(local)
    return f"{url}/{INDEX}" if url else local / INDEX


def run_language(workdir: os.PathLike | None) -> str:
    """Returns `data.language` of the run in a workdir, for BM25 over other texts; empty without a workdir."""
    return read_config(workdir).data.language if workdir else ""


def check_agrees(workdir: Folder, settings: "Settings", fingerprint: str, base: str = "") -> None:
    """Raises EndxError if the workdir holds a run with other settings that affect results, data or base of adapters."""
    on_primary(lambda: _check_agrees(workdir, settings, fingerprint, base), "workdir-checked")


def _check_agrees(workdir: Folder, settings: "Settings", fingerprint: str, base: str) -> None:
    if not (workdir / CONFIG).exists():
        return
    from endx_jax.experiment.config import config_changes

    changed = config_changes(read_config(workdir), settings)
    if (workdir / DATA).exists():
        begun = read_data(workdir)
        changed += ["other training data"] * (begun["sha256"] != fingerprint)
        model = settings.model.init_from or settings.model.pretrained
        changed += [f"other weights of {model}, the base of its adapters"] * (begun.get("base_sha256", base) != base)
    if changed:
        shown = "; ".join(changed) if len(changed) < 4 else f"{changed[0]}, and {len(changed) - 1} others"
        raise EndxError(
            f"{workdir} holds a run with other settings ({shown}): choose another workdir, or use what it began with"
        )


def write_config(workdir: Folder, settings: "Settings", data: dict) -> None:
    """Writes `config.json` (all settings), `data.json` (counts and hash of the data) and `manifest.json`."""
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    manifest = {"begun": begun, "seed": settings.seed, "data_sha256": data["sha256"], **environment()}
    contents = {CONFIG: settings.as_dict(), DATA: data, MANIFEST: manifest}
    for name, content in contents.items():
        write_text(workdir / name, json.dumps(content, indent=1) + "\n")


ADVICE = "wait for it, stop it or choose another workdir"


@contextlib.contextmanager
def opened(path: str | os.PathLike) -> Iterator[Workdir]:
    """Context with the workdir of a run, which a second run may not open: see `files.locked` and `bucket_lock`.

    A `Workdir`, which is open already, is yielded as it is.

    Files in a bucket are downloaded first, but checkpoints. The metric log is uploaded every few seconds, and all
    others at the end.

    Raises:
      EndxError: another run holds the workdir (the line names its host, process and start), or it can't be written to.
      RunInterrupted: the bucket can't be reached.
    """
    url = url_of(path)
    if isinstance(path, Workdir):
        yield path
        return
    if url is None:
        with run_lock(expanded(path)):
            yield Workdir(path)
        return
    if not url.startswith("gs://"):
        raise EndxError(f"workdir={url}: Orbax writes checkpoints to gs:// and to folders only; choose one of these")
    with contextlib.ExitStack() as stack:
        on_primary(lambda: stack.enter_context(bucket_lock(f"{url}/{LOCK}", ADVICE)), "workdir-locked")
        # After a kill, the next run in a workdir of this name removes the copy.
        place = pathlib.Path(tempfile.gettempdir()) / f"endx-{pathlib.Path(url).name}"
        copies = stack.enter_context(staging_folder(place))
        copies.chmod(0o700)
        local = copies / pathlib.Path(url).name
        stack.enter_context(naming(local, url))
        mirror = Mirror(url, local, skip=NOT_COPIED)
        local.mkdir(exist_ok=True)
        with mirror.uploading(*GROWING):
            try:
                yield Workdir(url, mirror)
            finally:
                mirror.upload()


@contextlib.contextmanager
def run_lock(workdir: pathlib.Path) -> Iterator[None]:
    """Context in which the primary process holds the lock file of a workdir, which it creates: see `files.locked`.

    If the file system has no locks, a line says so and the run continues.

    Raises:
      EndxError: another run holds it (the line names its host, process and start), or the folder can't be written.
    """
    made, held = not workdir.exists(), contextlib.ExitStack()

    def take() -> None:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise EndxError(f"{workdir} can't be written ({failure.strerror}); choose another workdir") from None
        if reason := held.enter_context(locked(workdir / LOCK, advice=ADVICE)):
            say(f"note: {workdir / LOCK} can't be locked ({reason}): do not start a second run in this workdir")

    on_primary(take, "workdir-locked")
    with held:
        try:
            yield
        finally:
            # A folder in which nothing else was written, as after a mistake in the settings, is removed again.
            with contextlib.suppress(OSError):  # NFS and Windows keep a file that is open; the user may have removed it
                if is_primary() and made and {entry.name for entry in workdir.iterdir()} == {LOCK}:
                    shutil.rmtree(workdir)


# Seconds between two writes of a lock object, and seconds without a write after which it is taken over.
LOCK_EVERY, LOCK_PATIENCE = 10.0, 30.0


@contextlib.contextmanager
def bucket_lock(url: str, advice: str) -> Iterator[None]:
    """Context that holds a lock object; a process that has lost it ends.

    A process that was killed leaves the object behind. Another one waits until it has not changed for `LOCK_PATIENCE`
    seconds, and takes it over. If two processes do so at once, the next write shows one of them that it has lost.

    Args:
      url: URL of the object.
      advice: end of the message if the lock is held elsewhere.

    Raises:
      InUse: another process holds it.
      EndxError, RunInterrupted: the bucket can't be written to.
    """
    own = signature(key=uuid.uuid4().hex)
    with bucket_errors(url):
        if not _create(url, own):
            _wait_for_its_end(url, advice)
            remove(url)
            if not _create(url, own):
                raise InUse(f"{url} was taken by another process: {advice}")
    try:
        with repeating(functools.partial(_rewrite, url, own), LOCK_EVERY):
            yield
    finally:
        with bucket_errors(url):
            if _read(url)[0] == own:
                filesystem(url).rm_file(url)


def _create(url: str, contents: bytes) -> bool:
    """Creates an object; returns false if it exists."""
    try:
        filesystem(url).pipe_file(url, contents, mode="create")
    except OSError:
        if not _read(url)[0]:
            raise
        return False
    return True


def _wait_for_its_end(url: str, advice: str) -> None:
    """Waits until a lock object is gone, or has not changed for `LOCK_PATIENCE` seconds; raises InUse if it changes."""
    contents, version = _read(url)
    holder = holder_of(contents)
    say(f"{url} is from {holder}: waiting {LOCK_PATIENCE:.0f} s for a sign that it still runs")
    deadline = time.monotonic() + LOCK_PATIENCE
    while time.monotonic() < deadline:
        time.sleep(LOCK_EVERY / 10)
        now = _read(url)[1]
        if not now:
            return  # its process has ended and removed it
        if now != version:
            raise InUse(f"{url.rpartition('/')[0]} is in use by {holder}: {advice}")
    say(f"{url} is taken over: {holder} has ended without removing it")


def _read(url: str) -> tuple[bytes, str]:
    """Returns contents and version of an object; both empty if it does not exist."""
    files = filesystem(url)
    files.invalidate_cache()
    try:
        about = files.info(url)
        return files.cat_file(url), str(about.get("generation") or about.get("LastModified"))
    except FileNotFoundError:
        return b"", ""


def _rewrite(url: str, own: bytes) -> None:
    """Rewrites a lock object; ends the process if another one has taken it."""
    with contextlib.suppress(EndxError, RunInterrupted):  # uploads report them
        with bucket_errors(url):
            contents, _ = _read(url)
            if contents == own:
                filesystem(url).pipe_file(url, own)
                return
        exit_now(2, f"{url} was taken over by {holder_of(contents)}: this process ends")
