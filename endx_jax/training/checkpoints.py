"""Checkpoints written asynchronously by Orbax, each with a hash of every file.

The workdir is a local folder or one in a bucket, into which Orbax writes without local files.

Orbax makes a checkpoint visible once all its files are complete, and then removes those that are neither new nor best,
so that a process may be killed at any moment. Orbax alone restores a file with a flipped bit without an error, so the
hashes are checked before a restore; a damaged checkpoint is removed and the previous one used.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from endx_jax import json_files
from endx_jax.buckets import bucket_errors, listing, read_bytes, remove, url_of, write_bytes
from endx_jax.errors import DiskFull, EndxError, RunInterrupted, first_line
from endx_jax.files import reporting_full_disk
from endx_jax.parallel.agreement import broadcast, on_primary
from endx_jax.parallel.distributed import client, is_primary
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.training.step import TrainState, without

FOLDER = "checkpoints"
# Files of a checkpoint: our hashes; Orbax's, of the metrics of its validation; and Orbax's that gets the time when the
# checkpoint is complete, after the hashes were written, and that no restore needs.
HASHES, METRICS, STAMPED = "hashes.json", "metrics/metrics", "_CHECKPOINT_METADATA"
SHA256, MD5 = "sha256", "md5"  # kinds of hashes: MD5 in a bucket, which computes it, else SHA-256
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
          upload: function of the primary process that uploads the metric log; called before a checkpoint is complete,
            so that a run that resumes from it has all lines before it.
          base: patterns of the paths of parameters that checkpoints do not hold, since they never change.
        """
        self.workdir, self._upload, self._base = _folder(workdir), upload, base
        self._finisher = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-finished")
        self._unfinished: futures.Future | None = None
        self._step, self._failed = 0, False  # the step that was saved last; true after an error
        on_primary(lambda: _remove_unusable(self.workdir, metric, report), "checkpoints-verified")
        order = functools.partial(_order, metric)
        options = ocp.CheckpointManagerOptions(
            cleanup_tmp_directories=True,
            best_fn=order,
            preservation_policy=AnyPreservationPolicy([LatestN(keep), BestN(get_metric_fn=order, n=1)]),
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._before_complete,
                barrier_sync_fn=_meet if jax.process_count() > 1 else None,
            ),
        )
        self._manager = ocp.CheckpointManager(self.workdir / FOLDER, options=options)

    @property
    def latest_step(self) -> int | None:
        """Step of the newest complete checkpoint; None if there is none."""
        return broadcast(lambda: newest_step(self.workdir), "newest-step")

    def save(self, step: int, state: TrainState, metrics: Mapping[str, float] | None = None) -> None:
        """Starts writing a checkpoint; returns once the device arrays are copied to the host.

        Raises:
          DiskFull: the disk has no room for this checkpoint, or had none for the previous one, which was still being
            written. Complete checkpoints are unchanged.
        """
        self.wait()
        self._step, state = step, self._without_base(state)
        with self._cleaning_up(step):
            on_primary(lambda: _check_room(self.workdir / FOLDER / str(step), state), "room-checked")
            # Forced, since each process would decide by the checkpoints that it has seen.
            with_step = {**(metrics or {}), "step": step}
            self._manager.save(step, args=_split(state, ocp.args.StandardSave), metrics=with_step, force=True)
        self._unfinished = self._finisher.submit(self._finish, step)

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Restores the exact state of a step, without the base, with the shardings of `like`, from any topology."""
        with bucket_errors(self.workdir / FOLDER / str(step)):
            items = self._manager.restore(step, args=_split(self._without_base(like), ocp.args.StandardRestore))
        return TrainState(step=items.progress["step"], params=items.params, opt_state=items.progress["opt_state"])

    def _without_base(self, state: TrainState) -> TrainState:
        return dataclasses.replace(state, params=without(state.params, self._base)) if self._base else state

    def wait(self) -> None:
        """Waits until the last checkpoint is complete in every process, or another process has ended after an error.

        Raises:
          DiskFull, EndxError, RunInterrupted: the errors of `save` in this process.
        """
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            unfinished.result()

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

    def _finish(self, step: int) -> None:
        with self._cleaning_up(step):
            self._manager.wait_until_finished()

    def _before_complete(self) -> None:
        """Uploads the metric log and writes the hashes; Orbax calls it on the primary, before it renames the folder."""
        self._upload()
        (folder,) = self._folders(self._step)
        kind = MD5 if url_of(folder) else SHA256
        write_bytes(folder / HASHES, json.dumps({kind: hash_files(folder, kind)}, indent=1).encode())

    def _folders(self, step: int) -> list[epath.Path]:
        """Returns the folders of a step, which have a longer name until they are complete."""
        folder = self.workdir / FOLDER
        return [folder / name for name in _children(folder) if name.partition(".")[0] == str(step)]

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
                    for incomplete in self._folders(step):
                        remove(incomplete)
            raise


def _meet(*, key: str, timeout_ms: int) -> None:
    """Waits for all processes; after an error in this one, raises that error instead.

    Orbax calls it in a `finally`, when the others still wait for what this process could not write: all would wait.
    """
    if failure := sys.exception():
        raise failure
    client().wait_at_barrier(key, timeout_ms)


def best_step(workdir: str | os.PathLike, metric: str) -> int | None:
    """Returns the step of `best_checkpoint`; None without any."""
    best = best_checkpoint(workdir, metric)
    return best and best[0]


def newest_step(workdir: str | os.PathLike) -> int | None:
    """Returns the step of the newest complete checkpoint that this process sees; None without any."""
    return max(_read_complete(workdir), default=None)


def best_checkpoint(workdir: str | os.PathLike, metric: str) -> tuple[int, dict[str, float]] | None:
    """Returns step and metrics of the best checkpoint by a metric, or of the newest without it; None without any."""
    order = functools.partial(_order, metric)
    best = broadcast(lambda: max(_read_complete(workdir).values(), key=order, default=None), "best-checkpoint")
    return (int(best.pop("step")), best) if best else None


def _order(metric: str, metrics: Mapping[str, float]) -> Any:
    """Returns a key that is highest for the first of the best checkpoints; without the metric, for the newest."""
    step = metrics["step"]
    return (metrics[metric], -step) if metric in metrics else (-math.inf, step)


def restore_params(workdir: str | os.PathLike, step: int, like):
    """Restores those parameters of a step that are in `like`, with its shardings.

    A group of parameters, such as `teacher`, is restored whole or not at all.

    Raises:
      EndxError: the checkpoint is damaged, or its groups have other parameters or shapes.
    """
    problem = broadcast(lambda: find_damage(workdir, step), "checkpoint-checked")
    name = f"checkpoint {step} in {workdir}"
    if problem:
        raise EndxError(f"{name} is damaged: {problem}; run `endx train` again, which removes it and repeats its steps")
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
    """Returns the `sha256` or `md5` of a checkpoint's files by relative path; a bucket knows each MD5."""
    url = url_of(folder)
    if url is None:
        local = pathlib.Path(folder)
        files = {file.relative_to(local).as_posix(): "" for file in sorted(local.rglob("*")) if file.is_file()}
    else:
        files = {name: stored.md5 if kind == MD5 else "" for name, stored in listing(url).items()}
    hashed = {name: checksum for name, checksum in files.items() if name not in (HASHES, STAMPED)}
    return {name: checksum or _hash_file(folder / name, kind) for name, checksum in hashed.items()}


def _hash_file(file: epath.Path, kind: str) -> str:
    with bucket_errors(file), file.open("rb") as stream:
        return hashlib.file_digest(stream, kind).hexdigest()


def find_damage(workdir: str | os.PathLike, step: int) -> str | None:
    """Returns the reason why a step's checkpoint is unusable; None if every file has its hash."""
    try:
        kind, hashes = _read_hashes(workdir, step)
    except EndxError:
        return f"{HASHES} is missing or has changed"
    actual = hash_files(_folder(workdir) / FOLDER / str(step), kind)
    changed = sorted(name for name, expected in hashes.items() if actual.get(name) != expected)
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


def _read_complete(workdir: str | os.PathLike) -> dict[int, dict[str, float]]:
    """Returns the metrics and `step` of complete checkpoints by step, newest first; skips those that can't be read."""
    complete = {}
    for step in _steps(workdir):
        with contextlib.suppress(EndxError):
            _read_hashes(workdir, step)
            metrics = _read(workdir, step, METRICS)
            complete[step] = {name: json_files.number(x, METRICS) for name, x in metrics.items()} | {"step": step}
    return complete


def _read_hashes(workdir: str | os.PathLike, step: int) -> tuple[str, dict[str, Any]]:
    """Returns the kind and the hashes of a checkpoint's files; raises EndxError if they can't be read."""
    hashed = _read(workdir, step, HASHES)
    kind = MD5 if MD5 in hashed else SHA256
    return kind, json_files.as_object(json_files.value(hashed, kind, HASHES), HASHES)


def _read(workdir: str | os.PathLike, step: int, name: str) -> dict:
    """Returns the contents of a checkpoint's JSON file; raises EndxError if it is missing or has no JSON object."""
    return json_files.parse(read_bytes(_folder(workdir) / FOLDER / str(step) / name) or b"", name, dict)


def _steps(workdir: str | os.PathLike) -> list[int]:
    """Returns the steps that have a folder, complete or not, newest first."""
    return sorted((int(name) for name in _children(_folder(workdir) / FOLDER) if name.isdigit()), reverse=True)


def _children(folder: epath.Path) -> set[str]:
    """Returns the names in a folder; none if it does not exist."""
    url = url_of(folder)
    if url is None:
        return {*os.listdir(folder)} if folder.is_dir() else set()
    return {name.partition("/")[0] for name in listing(url)}


def _remove_unusable(workdir: str | os.PathLike, metric: str, report: Callable[[str], None]) -> None:
    """Removes incomplete checkpoints, and the newest and the best one if they are damaged, until they are intact."""
    if _children(_folder(workdir) / "checkpoint_manifests"):
        raise EndxError(f"{workdir} holds checkpoints of an earlier version of endx_jax: use another workdir")
    suspects: set = {*_steps(workdir)} - {*_read_complete(workdir)}
    while True:
        suspects |= {newest_step(workdir), best_step(workdir, metric)} - {None}
        damage = {step: problem for step in sorted(suspects) if (problem := find_damage(workdir, step))}
        if not damage:
            return
        for step, problem in damage.items():
            remove(_folder(workdir) / FOLDER / str(step))
            report(f"checkpoint {step} can't be used: {problem}; it is removed")
        suspects = set()
