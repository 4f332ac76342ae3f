"""Checkpoints written asynchronously by Orbax, each with a manifest that holds a hash of every file.

The workdir is a local folder or one in a bucket, into which Orbax writes without local files.

A checkpoint is complete once its manifest exists. The manifest is written last, atomically, and removed first, so that
a process may be killed at any moment. Orbax alone restores a file with a flipped bit without an error, so the hashes
are checked before a restore; a damaged checkpoint is removed and the previous one used.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures

import jax
import orbax.checkpoint as ocp
from etils import epath

from endx_jax import json_files
from endx_jax.buckets import bucket_errors, listing, read_bytes, remove, url_of, write_bytes
from endx_jax.errors import DiskFull, EndxError, RunInterrupted, first_line
from endx_jax.files import reporting_full_disk
from endx_jax.parallel.agreement import decided, on_primary, together
from endx_jax.parallel.distributed import is_primary
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.training.step import TrainState, without

FOLDER, MANIFESTS = "checkpoints", "checkpoint_manifests"
SHA256, MD5 = "sha256", "md5"  # hashes in a manifest: MD5 in a bucket, which computes it, else SHA-256
METADATA_BYTES = 1_000_000  # disk space reserved for the files of a checkpoint that hold no arrays


class Checkpoints:
    """Checkpoints of a workdir; only one process, or one group of distributed processes, may write at a time."""

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        keep: int,
        metric: str,
        report: Callable[[str], None],
        upload: Callable[[], None] = lambda: None,
        base: Sequence[str] = (),
    ):
        """Opens the checkpoints and removes damaged and incomplete ones.

        Args:
          workdir: the run's folder.
          keep: number of newest checkpoints to keep, besides the best one.
          metric: name of the validation metric that selects the best checkpoint; higher is better.
          report: function that logs a line.
          upload: function of the primary process that uploads the metric log; called before a manifest is written, so
            that a run that resumes from the checkpoint has all lines before it.
          base: patterns of the paths of parameters that checkpoints do not hold, since they never change.
        """
        self.workdir, self._upload, self._base = _folder(workdir), upload, base
        self._keep, self._metric = keep, metric
        self._finisher = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-manifest")
        self._unfinished: futures.Future | None = None
        self._failed = False
        on_primary(lambda: _remove_unusable(self.workdir, metric, report), "checkpoints-verified")
        # Orbax would remove old checkpoints before the new one has its manifest, so `_remove_old` does it.
        options = ocp.CheckpointManagerOptions(cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(self.workdir / FOLDER, options=options)

    @property
    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint; None if there is none."""
        return decided(lambda: newest_step(self.workdir), "newest-step")

    def save(self, step: int, state: TrainState, metrics: Mapping[str, float] | None = None) -> None:
        """Starts writing a checkpoint; returns once the device arrays are copied to the host.

        Raises:
          DiskFull: the disk has no room for this checkpoint, or had none for the previous one, which was still being
            written. Complete checkpoints are unchanged.
        """
        self.wait()
        state = self._without_base(state)
        with self._cleaning_up(step):
            on_primary(lambda: _check_room(self.workdir / FOLDER / str(step), state), "room-checked")
            # Forced, since each process would decide by the checkpoints that it has seen.
            self._manager.save(step, args=_split(state, ocp.args.StandardSave), force=True)
        self._unfinished = self._finisher.submit(self._finish, step, dict(metrics) if metrics else None)

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Restores the exact state of a step, without the base, with the shardings of `like`, from any topology."""
        with bucket_errors(self.workdir / FOLDER / str(step)):
            items = self._manager.restore(step, args=_split(self._without_base(like), ocp.args.StandardRestore))
        return TrainState(step=items.progress["step"], params=items.params, opt_state=items.progress["opt_state"])

    def _without_base(self, state: TrainState) -> TrainState:
        return dataclasses.replace(state, params=without(state.params, self._base)) if self._base else state

    def wait(self) -> None:
        """Waits until every process has written the last checkpoint and the primary its manifest.

        Raises:
          DiskFull, EndxError, RunInterrupted: the errors of `save` in any process.
        """
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            together(unfinished.result, "checkpoint-written")

    def has_failed(self) -> bool:
        """Returns true if the last write has already failed in this process, so that `wait` will raise its error."""
        unfinished = self._unfinished
        return unfinished is not None and unfinished.done() and unfinished.exception() is not None

    def close(self) -> None:
        """Waits as `wait` does and stops the writer threads."""
        self.wait()
        self._finisher.shutdown()
        if not self._failed:
            self._manager.close()

    def _finish(self, step: int, metrics: dict | None) -> None:
        """Writes the manifest after Orbax has moved its files to their final folder; Orbax's own hook runs earlier."""
        with self._cleaning_up(step):
            self._manager.wait_until_finished()
            if is_primary():
                self._upload()
                kind = MD5 if url_of(self.workdir) else SHA256
                hashes = hash_files(self.workdir / FOLDER / str(step), kind)
                manifest = {"step": step, "metrics": metrics, kind: hashes}
                write_bytes(_manifest(self.workdir, step), json.dumps(manifest, indent=1).encode())
                _remove_old(self.workdir, self._keep, self._metric)

    @contextlib.contextmanager
    def _cleaning_up(self, step: int) -> Iterator[None]:
        """Raises one error for a full disk or a bucket that fails; removes the incomplete checkpoint if it can."""
        folder = self.workdir / FOLDER
        try:
            with reporting_full_disk(folder / str(step)), bucket_errors(folder / str(step)):
                yield
        except (EndxError, RunInterrupted):
            self._failed = True
            if is_primary():
                # Where the bucket refuses this too, the next run removes it.
                with contextlib.suppress(EndxError, RunInterrupted):
                    _remove(self.workdir, step)
                    for name in _children(folder):
                        if name.startswith(f"{step}."):
                            remove(folder / name)
            raise


def best_step(workdir: str | os.PathLike, metric: str) -> int | None:
    """Returns the step of the best checkpoint by a metric, or the newest if none has the metric; None without any."""
    best = best_validation(workdir, metric)
    return best[0] if best else decided(lambda: newest_step(workdir), "newest-step")


def newest_step(workdir: str | os.PathLike) -> int | None:
    """Returns the step of the newest complete checkpoint that this process sees; None without any."""
    return max(_read_manifests(workdir), default=None)


def best_validation(workdir: str | os.PathLike, metric: str) -> tuple[int, dict[str, float]] | None:
    """Returns the step and the metrics of the best checkpoint by a metric, first of equal ones; None without any."""
    best = decided(lambda: _best(_read_manifests(workdir), metric), "best-validation")
    return (best[0], best[1]) if best else None


def restore_params(workdir: str | os.PathLike, step: int, like):
    """Restores those parameters of a step that are in `like`, with its shardings.

    A group of parameters, such as `teacher`, is restored whole or not at all.

    Raises:
      EndxError: the checkpoint is damaged, or its groups have other parameters or shapes.
    """
    problem = decided(lambda: find_damage(workdir, step), "checkpoint-checked")
    name = f"checkpoint {step} in {workdir}"
    if problem:
        raise EndxError(
            f"{name} is damaged: {problem}; run `endx train` on this workdir again: it removes "
            "the checkpoint and repeats its steps"
        )
    folder = _folder(workdir) / FOLDER
    try:
        with bucket_errors(folder / str(step)):
            # Orbax leaves parameters that it does not find as they are in `like`, and omits those that are not in it.
            stored = parameter_paths(ocp.PyTreeCheckpointHandler().metadata(folder / str(step) / "params").tree)
            expected, groups = parameter_paths(like), {*like}
            for path in [*expected, *(path for path in stored if path.partition("/")[0] in groups)]:
                shapes = [leaves[path].shape if path in leaves else "none" for leaves in (stored, expected)]
                if shapes[0] != shapes[1]:
                    raise EndxError(
                        f"{name} has another architecture: its {path} has the shape {shapes[0]} "
                        f"instead of {shapes[1]}; set model.* and objective.* as in {workdir}/config.json"
                    )
            with ocp.CheckpointManager(folder) as manager:
                onto = ocp.checkpoint_utils.construct_restore_args(like)
                only = ocp.args.PyTreeRestore(like, restore_args=onto, partial_restore=True)
                return manager.restore(step, args=ocp.args.Composite(params=only)).params
    except EndxError:
        raise
    except (OSError, ValueError, LookupError, TypeError) as failure:  # no hash covers what is missing
        raise EndxError(f"{name} can't be restored: {first_line(failure)}") from None


def _best(manifests: Mapping[int, dict], metric: str) -> tuple[int, dict[str, float]] | None:
    evaluated = [(step, m["metrics"]) for step, m in manifests.items() if metric in m["metrics"]]
    return max(evaluated, key=lambda entry: (entry[1][metric], -entry[0]), default=None)


def _check_room(folder: epath.Path, state: TrainState) -> None:
    """Raises DiskFull if a checkpoint does not fit, since Orbax prints many stack traces when a write fails."""
    if url_of(folder):
        return
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + METADATA_BYTES
    disk = shutil.disk_usage(folder.parent)
    if disk.free < needed and disk.total:  # some network file systems report a size of 0
        raise DiskFull(
            f"can't write {folder}: it needs {needed / 1e6:,.0f} MB and {disk.free / 1e6:,.0f} MB are free; free some "
            "space and run the same command to resume"
        )


def hash_files(folder: epath.Path, kind: str) -> dict[str, str]:
    """Returns the `sha256` or `md5` of every file below a folder, by relative path; a bucket knows each MD5."""
    url = url_of(folder)
    if url is None:
        local = pathlib.Path(folder)
        files = {file.relative_to(local).as_posix(): "" for file in sorted(local.rglob("*")) if file.is_file()}
    else:
        files = {name: stored.md5 if kind == MD5 else "" for name, stored in listing(url).items()}
    return {name: checksum or _hash_file(folder / name, kind) for name, checksum in files.items()}


def _hash_file(file: epath.Path, kind: str) -> str:
    with bucket_errors(file), file.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def find_damage(workdir: str | os.PathLike, step: int) -> str | None:
    """Returns the reason why a step's checkpoint is unusable; None if every file has the hash in the manifest."""
    contents = read_bytes(_manifest(workdir, step))
    if contents is None:
        return "it is incomplete"
    try:
        manifest = _parse_manifest(contents, str(_manifest(workdir, step)))
    except EndxError:
        return "its manifest can't be read"
    actual = hash_files(_folder(workdir) / FOLDER / str(step), manifest["kind"])
    changed = sorted(name for name, expected in manifest["hashes"].items() if actual.get(name) != expected)
    return f"{changed[0]} is missing or has changed" if changed else None


def abstract(state, shardings):
    """Returns the shapes and shardings of a state, as the target of a restore."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)


def _split(state: TrainState, wrap):
    """Splits a state into two Orbax items, so that parameters can be restored without the optimizer state."""
    progress = {"step": state.step, "opt_state": state.opt_state}
    return ocp.args.Composite(params=wrap(state.params), progress=wrap(progress))


def _folder(workdir: str | os.PathLike) -> epath.Path:
    return epath.Path(url_of(workdir) or os.path.abspath(workdir))


def _manifest(workdir: str | os.PathLike, step: int) -> epath.Path:
    return _folder(workdir) / MANIFESTS / f"{step}.json"


def _read_manifests(workdir: str | os.PathLike) -> dict[int, dict]:
    """Returns the manifests of existing checkpoints by step; skips unreadable ones."""
    manifests = {}
    for step in _steps(workdir):
        contents = read_bytes(_manifest(workdir, step))
        if contents is not None:
            with contextlib.suppress(EndxError):
                manifests[step] = _parse_manifest(contents, str(_manifest(workdir, step)))
    return manifests


def _parse_manifest(contents: bytes, where: str) -> dict:
    """Parses a manifest.

    Returns:
      `metrics`, values by name, empty if the step was not validated; `hashes`, by file; `kind`, their function.

    Raises:
      EndxError: it is not a manifest.
    """
    manifest = json_files.parse(contents, where, dict)
    metrics = json_files.as_object(json_files.value(manifest, "metrics", where) or {}, where)
    kind = MD5 if MD5 in manifest else SHA256
    hashes = json_files.as_object(json_files.value(manifest, kind, where), where)
    return {
        "metrics": {name: json_files.number(value, where) for name, value in metrics.items()},
        "hashes": {name: json_files.as_text(value, where) for name, value in hashes.items()},
        "kind": kind,
    }


def _steps(workdir: str | os.PathLike) -> list[int]:
    """Returns the steps that have a folder, complete or not, newest first."""
    return sorted((int(name) for name in _children(_folder(workdir) / FOLDER) if name.isdigit()), reverse=True)


def _children(folder: epath.Path) -> set[str]:
    """Returns the names in a folder; none if it does not exist."""
    url = url_of(folder)
    if url is None:
        return {*os.listdir(folder)} if folder.is_dir() else set()
    return {name.partition("/")[0] for name in listing(url)}


def _remove(workdir: str | os.PathLike, step: int) -> None:
    """Removes a checkpoint, its manifest first."""
    remove(_manifest(workdir, step))
    remove(_folder(workdir) / FOLDER / str(step))


def _remove_old(workdir: str | os.PathLike, keep: int, metric: str) -> None:
    """Removes all checkpoints except the newest `keep` and the best."""
    best = _best(_read_manifests(workdir), metric)
    for step in _steps(workdir)[keep:]:
        if not best or step != best[0]:
            _remove(workdir, step)


def _remove_unusable(workdir: str | os.PathLike, metric: str, report: Callable[[str], None]) -> None:
    """Removes damaged checkpoints, newest first up to the first intact one, and the best one if it is damaged."""
    steps = _steps(workdir)
    for step in steps:
        problem = find_damage(workdir, step)
        if not problem:
            break
        _remove(workdir, step)
        fallback = "the previous one is used" if step != steps[-1] else "training starts from the beginning"
        report(f"checkpoint {step} can't be used: {problem}; it is removed and {fallback}")
    folder, manifests = _folder(workdir) / FOLDER, _folder(workdir) / MANIFESTS
    for name in _children(folder):
        if name.isdigit() and f"{name}.json" not in _children(manifests):  # its removal was interrupted
            remove(folder / name)
    best = best_step(workdir, metric)
    while best is not None and (problem := find_damage(workdir, best)):
        _remove(workdir, best)
        report(f"checkpoint {best}, the best by {metric}, can't be used: {problem}; it is removed")
        best = best_step(workdir, metric)
    complete = {f"{step}.json" for step in _steps(workdir)}
    for name in _children(manifests) - complete:  # includes temporary files of interrupted writes
        remove(manifests / name)
