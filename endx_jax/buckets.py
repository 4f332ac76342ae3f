"""Reads, writes and lists objects in buckets (`gs://`, `s3://`), and keeps local copies of them, by fsspec.

What is memory-mapped or opened by SQLite needs a local file, so everything that is read is copied first, and everything
that is written is written locally and then uploaded (`endx_jax.uploads`). fsspec repeats requests that failed for a
passing reason.
"""

import base64
import contextlib
import dataclasses
import fnmatch
import hashlib
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import tqdm

from endx_jax.errors import EndxError, InUse, RunInterrupted, first_line, install
from endx_jax.files import expanded, locked, replacing, reporting_full_disk, write_text
from endx_jax.json_files import as_path

EXTRAS = {"gs": "gcs", "s3": "s3"}  # the extra of endx_jax for each scheme
CACHE = "~/.cache/endx_jax/buckets"  # local copies, by scheme, bucket and path
ATTEMPTS = 3  # copies of a folder that changes meanwhile
LARGE = 50e6  # bytes of a copy that has a progress bar
# Parts of a run in a bucket that are never copied, and those that are not copied to load its model.
NOT_COPIED = (".lock", "checkpoints", "tensorboard", "wandb", "profile")
NOT_OF_MODEL = (*NOT_COPIED, "evaluation", "*.sqlite")
DENIED = r"\b40[13]\b|Forbidden|PERMISSION_DENIED|UNAUTHENTICATED|[Cc]redentials"
# Messages of TensorStore's ValueErrors about a bucket; other statuses are of damaged arrays.
TENSORSTORE = re.compile(
    r"(PERMISSION_DENIED|UNAUTHENTICATED|ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|INTERNAL): .*gs://",
    re.DOTALL,
)


class Missing(EndxError):
    """Error about an object or bucket that does not exist."""


def url_of(path: str | os.PathLike) -> str | None:
    """Returns the normalized URL of a path in a bucket; None for a local path.

    Raises:
      EndxError: the path is neither, or the extra for its scheme is not installed.
    """
    text = as_path(path)
    scheme, separator, rest = text.partition(":/")
    if scheme not in EXTRAS or not separator:
        return None
    if not rest.startswith("/"):
        raise EndxError(f"{text} is a local path that looks like a bucket: write {scheme}://... or ./{text}")
    bucket, *parts = rest[1:].rstrip("/").split("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]+[a-z0-9]", bucket):
        raise EndxError(f"{text}: {bucket!r} is no name of a bucket; write {scheme}://BUCKET/PATH")
    if any(part in ("", ".", "..") or not part.isprintable() or set(part) & set("*?[]#") for part in parts):
        raise EndxError(f"{text}: the path in a bucket may not contain //, /./, /../, *, ?, [, ] or #")
    return "/".join([f"{scheme}:/", bucket, *parts])


def filesystem(url: str) -> Any:
    """Returns the fsspec file system of a URL, which keeps no listings: other processes write to the bucket too.

    Raises:
      EndxError: the extra for its scheme is not installed.
    """
    import fsspec

    scheme = url.partition(":")[0]
    fsspec.config.conf.setdefault(scheme, {}).setdefault("use_listings_cache", False)  # etils' file system too
    try:
        return fsspec.filesystem(scheme)
    except ImportError:
        raise EndxError(f"{url} needs the extra {EXTRAS[scheme]}: {install(EXTRAS[scheme])}") from None


@contextlib.contextmanager
def bucket_errors(url: str | os.PathLike) -> Iterator[None]:
    """Context that converts the errors of a bucket to one line with the object's name; none for a local path.

    Raises:
      EndxError: the bucket or object does not exist, or access is denied.
      RunInterrupted: the bucket can't be reached now.
    """
    try:
        yield
    except (EndxError, RunInterrupted):
        raise
    except _failures() as failure:
        other = isinstance(failure, ValueError) and not TENSORSTORE.match(str(failure))
        if "://" not in str(url) or other:
            raise
        raise as_user_error(str(url), failure) from None


def as_user_error(url: str, failure: BaseException) -> EndxError | RunInterrupted:
    """Returns the error of one line for a failure of a bucket."""
    reason = first_line(failure).partition(" [tensorstore_spec=")[0].partition(" [http_response_")[0]
    if isinstance(failure, FileNotFoundError) or re.search(r"\b404\b|NoSuchBucket", reason):
        return Missing(f"{url}: there is no such bucket or object; check the name")
    if isinstance(failure, PermissionError) or re.search(DENIED, reason):
        return EndxError(f"{url}: access is denied ({reason}); check the permissions of this account")
    return RunInterrupted(f"{url} can't be reached ({type(failure).__name__}: {reason}); run the same command again")


def _failures() -> tuple[type[Exception], ...]:
    """Returns the types of errors that the file systems raise; those of libraries that are not loaded can't occur."""
    named = (
        ("gcsfs.retry", "HttpError"),
        ("aiohttp", "ClientError"),
        ("google.auth.exceptions", "GoogleAuthError"),
        ("botocore.exceptions", "BotoCoreError"),
    )
    return (
        OSError,
        ValueError,
        *(getattr(sys.modules[module], name) for module, name in named if module in sys.modules),
    )


@dataclasses.dataclass(frozen=True)
class ObjectInfo:
    """Object in a bucket.

    Attributes:
      size: bytes.
      version: generation or ETag, which changes with its contents.
      md5: hexadecimal MD5; empty if the bucket does not know it.
    """

    size: int
    version: str
    md5: str


def listing(url: str, skip: Sequence[str] = ()) -> dict[str, ObjectInfo]:
    """Returns the objects below a URL by relative path, and by the path "" if the URL is an object.

    Args:
      url: URL of an object or folder, which may not exist.
      skip: patterns of the first parts of relative paths that are left out.

    Raises:
      EndxError: the bucket can't be read, or an object's name is no relative path.
    """
    files = filesystem(url)
    with bucket_errors(url):
        files.invalidate_cache()
        listed = files.find(url, detail=True)
    root, objects = url.partition("://")[2], {}
    for path, about in listed.items():
        name = path.removeprefix(root).removeprefix("/")
        first, *others = name.split("/")
        if path.endswith("/") or matches(first, skip):
            continue
        if name and {"", ".", ".."} & {first, *others}:
            raise EndxError(f"{url}: the object {path!r} has no name that a local file can have; rename it")
        tag = str(about.get("ETag", "")).strip('"')
        md5 = base64.b64decode(about["md5Hash"]).hex() if about.get("md5Hash") else tag if len(tag) == 32 else ""
        objects[name] = ObjectInfo(about["size"], str(about.get("generation") or tag), md5)
    return objects


def read_bytes(path: str | os.PathLike) -> bytes | None:
    """Returns the contents of a file, local or in a bucket; None if it does not exist."""
    url = url_of(path)
    try:
        with bucket_errors(path):
            return filesystem(url).cat_file(url) if url else pathlib.Path(path).read_bytes()
    except (FileNotFoundError, Missing):
        return None


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes a file atomically, locally or in a bucket.

    Raises:
      EndxError, RunInterrupted: it can't be written.
    """
    url = url_of(path)
    if url is None:
        with replacing(pathlib.Path(path), "wb") as stream:
            stream.write(data)
        return
    with bucket_errors(url):
        filesystem(url).pipe_file(url, data)


def remove(path: str | os.PathLike) -> None:
    """Removes a file or folder, locally or in a bucket; no effect if it does not exist."""
    url = url_of(path)
    if url is not None:
        with contextlib.suppress(Missing), bucket_errors(url):
            filesystem(url).rm(url, recursive=True)
    elif os.path.isdir(path):
        shutil.rmtree(path)
    else:
        pathlib.Path(path).unlink(missing_ok=True)


def local_copy(path: str | os.PathLike, skip: Sequence[str] = (), *, by_version: bool = False) -> pathlib.Path:
    """Returns a local path with the contents of a path in a bucket; expands `~` in a local path and returns it.

    Only objects that are new or have changed since the last copy are downloaded, by one process at a time, and copies
    of objects that were deleted since are removed.

    Args:
      path: file or folder.
      skip: patterns of the names of files and folders in it that are not copied.
      by_version: true to give each version of a file in a bucket its own path, so that an open file is not replaced.

    Raises:
      EndxError: there is no such object, the bucket or the local path can't be read, or the disk is full.
      InUse: the objects change while they are copied.
    """
    url = url_of(path)
    if url is None:
        local = expanded(path)
        try:
            os.stat(local)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # it may be a new output or the name of a model
            pass
        except OSError as failure:
            raise EndxError(f"{path!s:.200} can't be read: {failure.strerror}") from None
        return local
    cache = expanded(CACHE)
    place, versions = (cache / part / url.replace("://", "/") for part in ("files", "versions"))
    lock = cache / f"{url.split('/')[2]}.lock"  # one for the bucket: copies of a folder and a file in it overlap
    lock.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock, waits=True):
        for _ in range(ATTEMPTS):
            objects = listing(url, skip)
            if not objects:
                raise EndxError(f"{url}: there is no such object or folder; check the name")
            _remove_deleted(place, versions, objects, skip)
            changed = {
                name: stored
                for name, stored in objects.items()
                if not (place / name).is_file() or _version(versions / name) != stored.version
            }
            if not changed:
                return _linked(place, objects[""].version) if by_version and "" in objects else place
            for name in changed:
                (versions / name / VERSION).unlink(missing_ok=True)
                for log in {f"{name}{suffix}" for suffix in ("-wal", "-shm", "-journal")} - {*objects}:
                    pathlib.Path(f"{place}/{log}" if name else f"{place}{log}").unlink(missing_ok=True)
            fetch(url, changed, place)
            for name, stored in changed.items():
                write_text(versions / name / VERSION, stored.version)
    raise InUse(f"{url} is changing: read it once it is written")


def _linked(copy: pathlib.Path, version: str) -> pathlib.Path:
    """Hard-links a copy into a folder for its version and removes earlier links; returns the copy if that fails."""
    folder = copy.with_name(f".{copy.name}.versions")
    linked = folder / hashlib.sha256(version.encode()).hexdigest()[:16] / copy.name
    if not linked.exists():
        shutil.rmtree(folder, ignore_errors=True)
        linked.parent.mkdir(parents=True)
        with contextlib.suppress(OSError):
            os.link(copy, linked)
    return linked if linked.exists() else copy


def _remove_deleted(place: pathlib.Path, versions: pathlib.Path, objects: Container[str], skip: Sequence[str]) -> None:
    """Removes local copies of objects that no longer exist in the bucket, and folders that become empty.

    Files that are not copies are kept, such as the journal that SQLite keeps beside an index.
    """
    for version in [*versions.rglob(VERSION)]:
        folder = version.parent.relative_to(versions)
        name = "/".join(folder.parts)
        if name in objects or matches(name.partition("/")[0], skip):
            continue
        (place / name).unlink(missing_ok=True)
        version.unlink()
        for parent in (place / name).parents[: len(folder.parts)]:
            with contextlib.suppress(OSError):  # it is not empty
                parent.rmdir()


VERSION = ".version"  # file with the version of a copied object, in a folder with the object's name


def _version(folder: pathlib.Path) -> str:
    return (folder / VERSION).read_text() if (folder / VERSION).is_file() else ""


def fetch(url: str, objects: Mapping[str, ObjectInfo], folder: pathlib.Path) -> None:
    """Downloads objects below a URL into a folder, each atomically, with a progress bar.

    Raises:
      EndxError: an object can't be read, or the disk is full.
    """
    files, total = filesystem(url), sum(stored.size for stored in objects.values())
    hidden = not (sys.stderr.isatty() and total > LARGE)
    with tqdm.tqdm(total=total, desc=f"copying {url}", unit="B", unit_scale=True, disable=hidden) as bar:
        for name, stored in objects.items():
            where = f"{url}/{name}" if name else url
            part = (folder / name).with_name(f".{(folder / name).name}.part")
            with reporting_full_disk(part), bucket_errors(where):
                part.parent.mkdir(parents=True, exist_ok=True)
                files.get_file(where, str(part))
                part.replace(folder / name)
            bar.update(stored.size)


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Returns whether a name matches one of some patterns, which tell upper from lower case."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
