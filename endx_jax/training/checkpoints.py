"""Checkpoints, written asynchronously by Orbax, each with a manifest of file hashes.

A checkpoint is complete once its manifest exists: the manifest is written last, atomically, and removed first, so a
process may be killed at any moment. Orbax restores a file with a flipped bit without an error, so hashes are checked
before anything is restored; a damaged checkpoint is removed and the one before it is used.
"""

import contextlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures

import jax
import orbax.checkpoint as ocp

from endx_jax import json_files
from endx_jax.errors import DiskFull, EndxError
from endx_jax.files import reporting_full_disk, sha256_of, write_text
from endx_jax.parallel.distributed import is_primary, on_primary
from endx_jax.training.state import TrainState

FOLDER, MANIFESTS = "checkpoints", "checkpoint_manifests"
METADATA_BYTES = 1_000_000  # room for a checkpoint's files beside the arrays


class Checkpoints:
    """Checkpoints of one workdir, written by one process or one group of processes at a time."""

    def __init__(self, workdir: pathlib.Path, *, keep: int, metric: str, report: Callable[[str], None]):
        """Opens the checkpoints, and removes damaged and incomplete ones.

        Args:
          workdir: of the run.
          keep: number of newest checkpoints to keep, beside the best.
          metric: of the validation split, by which the best checkpoint is selected; higher is better.
          report: called with a line for the log.
        """
        self.workdir = workdir.absolute()
        self._keep, self._metric = keep, metric
        self._finisher = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-manifest")
        self._unfinished: futures.Future | None = None
        self._failed = False
        on_primary(lambda: _remove_unusable(self.workdir, metric, report), "checkpoints-verified")
        # Orbax would remove old checkpoints before the manifest of the new one stands: `_remove_old` does it after.
        options = ocp.CheckpointManagerOptions(cleanup_tmp_directories=True)
        self._manager = ocp.CheckpointManager(self.workdir / FOLDER, options=options)

    @property
    def latest_step(self) -> int | None:
        """The newest checkpoint's step, or None."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, metrics: Mapping[str, float] | None = None) -> None:
        """Starts to write a checkpoint; returns once the device arrays are copied. Raises errors of the previous write.

        Raises:
          DiskFull: the checkpoint does not fit on the disk; earlier ones are unchanged.
        """
        self.wait()
        with self._cleaning_up(step):
            _check_room(self.workdir / FOLDER / str(step), state)
            self._manager.save(step, args=_split(state, ocp.args.StandardSave))
        self._unfinished = self._finisher.submit(self._finish, step, dict(metrics) if metrics else None)

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Restores a step bit-equal, onto the shardings of `like`, from any topology."""
        items = self._manager.restore(step, args=_split(like, ocp.args.StandardRestore))
        return TrainState(step=items.progress["step"], params=items.params, opt_state=items.progress["opt_state"])

    def wait(self) -> None:
        """Waits until everything is on disk, manifests included; raises the errors of `save`."""
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            unfinished.result()

    def look(self) -> None:
        """Raises the errors of `save` if the previous write has failed."""
        if self._unfinished is not None and self._unfinished.done():
            self.wait()

    def close(self) -> None:
        """Waits and releases the writing threads; raises the errors of `save`, unless raised before."""
        self.wait()
        self._finisher.shutdown()
        if not self._failed:
            self._manager.close()

    def _finish(self, step: int, metrics: dict | None) -> None:
        """Hashes the files of Orbax once they are in their final place; Orbax's hook runs before that."""
        with self._cleaning_up(step):
            self._manager.wait_until_finished()
            if is_primary():
                manifest = {"step": step, "metrics": metrics, "sha256": hash_files(self.workdir / FOLDER / str(step))}
                write_text(_manifest(self.workdir, step), json.dumps(manifest, indent=1))
                _remove_old(self.workdir, self._keep, self._metric)

    @contextlib.contextmanager
    def _cleaning_up(self, step: int) -> Iterator[None]:
        """Raises DiskFull if the disk is full, and removes the incomplete checkpoint."""
        try:
            with reporting_full_disk(self.workdir / FOLDER / str(step)):
                yield
        except EndxError:
            self._failed = True
            if is_primary():
                _remove(self.workdir, step)
                for folder in (self.workdir / FOLDER).glob(f"{step}.*"):
                    shutil.rmtree(folder, ignore_errors=True)
            raise


def best_step(workdir: pathlib.Path, metric: str) -> int | None:
    """Returns the step of the best checkpoint by a metric; the newest if none was evaluated; None if there is none."""
    manifests = _read_manifests(workdir)
    evaluated = {step: m["metrics"][metric] for step, m in manifests.items() if metric in m["metrics"]}
    if evaluated:
        return max(evaluated, key=lambda step: (evaluated[step], -step))
    return max(manifests, default=None)


def restore_params(workdir: pathlib.Path, step: int, like):
    """Restores the parameters of a step that are in `like`, onto its shardings.

    Raises:
      EndxError: the checkpoint is damaged.
    """
    problem = find_damage(workdir, step)
    if problem:
        raise EndxError(
            f"checkpoint {step} in {workdir} is damaged: {problem}; the command that trained it removes it and makes "
            "up for it"
        )
    with ocp.CheckpointManager((workdir / FOLDER).absolute()) as manager:
        onto = ocp.checkpoint_utils.construct_restore_args(like)
        only = ocp.args.PyTreeRestore(like, restore_args=onto, partial_restore=True)
        return manager.restore(step, args=ocp.args.Composite(params=only)).params


def _check_room(folder: pathlib.Path, state: TrainState) -> None:
    """Raises DiskFull if a checkpoint does not fit; on a full disk Orbax would print many tracebacks."""
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + METADATA_BYTES
    disk = shutil.disk_usage(folder.parent)
    if disk.free < needed and disk.total:  # some network file systems do not know their size and report 0
        raise DiskFull(
            f"can't write {folder}: it takes {needed / 1e6:,.0f} MB and {disk.free / 1e6:,.0f} MB are free; make room "
            "there, and the same command resumes"
        )


def hash_files(folder: pathlib.Path) -> dict[str, str]:
    """Returns the sha256 of every file below a folder, by relative path."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {file.relative_to(folder).as_posix(): sha256_of(file) for file in files}


def find_damage(workdir: pathlib.Path, step: int) -> str | None:
    """Returns the reason why a step's checkpoint is unusable; None if all hashes match."""
    if not _manifest(workdir, step).is_file():
        return "it was not finished"
    manifest = _read_manifests(workdir).get(step)
    if manifest is None:
        return "its manifest can't be read"
    found = hash_files(workdir / FOLDER / str(step))
    changed = sorted(name for name, expected in manifest["sha256"].items() if found.get(name) != expected)
    return f"{changed[0]} is not as it was written" if changed else None


def abstract(state, shardings):
    """Returns shapes and shardings of a state, to restore onto."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)


def _split(state: TrainState, wrap):
    """Splits a state into items; parameters are one item, so that a model can be loaded without its optimizer."""
    progress = {"step": state.step, "opt_state": state.opt_state}
    return ocp.args.Composite(params=wrap(state.params), progress=wrap(progress))


def _manifest(workdir: pathlib.Path, step: int) -> pathlib.Path:
    return workdir / MANIFESTS / f"{step}.json"


def _read_manifests(workdir: pathlib.Path) -> dict[int, dict]:
    """Returns the manifests of existing checkpoints by step, without unreadable ones."""
    found = {}
    for step in _steps(workdir):
        with contextlib.suppress(EndxError):
            found[step] = _read_manifest(_manifest(workdir, step))
    return found


def _read_manifest(file: pathlib.Path) -> dict:
    """Returns `metrics`, numbers by name (possibly none), and `sha256`, hashes by file.

    Raises:
      EndxError: the file can't be read, or is not a manifest.
    """
    manifest, where = json_files.read(file), str(file)
    metrics = json_files.mapped(json_files.value(manifest, "metrics", where) or {}, where)
    hashes = json_files.mapped(json_files.value(manifest, "sha256", where), where)
    return {
        "metrics": {name: json_files.number(value, where) for name, value in metrics.items()},
        "sha256": {name: json_files.text(value, where) for name, value in hashes.items()},
    }


def _steps(workdir: pathlib.Path) -> list[int]:
    """Returns the steps that have a folder, complete or not, newest first."""
    return sorted((int(f.name) for f in (workdir / FOLDER).glob("*") if f.name.isdigit()), reverse=True)


def _remove(workdir: pathlib.Path, step: int) -> None:
    """Removes a checkpoint, its manifest first."""
    _manifest(workdir, step).unlink(missing_ok=True)
    if (workdir / FOLDER / str(step)).exists():
        shutil.rmtree(workdir / FOLDER / str(step))


def _remove_old(workdir: pathlib.Path, keep: int, metric: str) -> None:
    """Removes all checkpoints except the newest `keep` and the best."""
    best = best_step(workdir, metric)
    for step in _steps(workdir)[keep:]:
        if step != best:
            _remove(workdir, step)


def _remove_unusable(workdir: pathlib.Path, metric: str, report: Callable[[str], None]) -> None:
    """Removes damaged checkpoints from the newest back to the first intact one, and the best if it is damaged."""
    steps = _steps(workdir)
    for step in steps:
        problem = find_damage(workdir, step)
        if not problem:
            break
        _remove(workdir, step)
        then = "the one before it is used" if step != steps[-1] else "training begins again"
        report(f"checkpoint {step} can't be used: {problem}; it is removed and {then}")
    for step in _steps(workdir):
        if not _manifest(workdir, step).is_file():  # its removal was cut short
            _remove(workdir, step)
    best = best_step(workdir, metric)
    while best is not None and (problem := find_damage(workdir, best)):
        _remove(workdir, best)
        report(f"checkpoint {best}, the best by {metric}, can't be used: {problem}; it is removed")
        best = best_step(workdir, metric)
    for file in (workdir / MANIFESTS).glob("*"):  # those that were cut short among them, which have other names
        if file.suffix != ".json" or not (workdir / FOLDER / file.stem).is_dir():
            file.unlink()
