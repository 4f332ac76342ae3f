"""Checkpoints: Orbax writes them asynchronously; a manifest with a hash of every file makes each one count.

A checkpoint is there when its manifest is. Orbax alone restores a file with a flipped bit in silence, so the hashes are
checked before anything is restored, and what fails is removed in favour of the checkpoint before it.
"""

import json
import pathlib
import shutil
from collections.abc import Callable, Mapping
from concurrent import futures

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from endx_jax.errors import EndxError
from endx_jax.files import sha256_of, write_text
from endx_jax.parallel.distributed import is_primary, on_primary
from endx_jax.training.state import TrainState

FOLDER, MANIFESTS = "checkpoints", "checkpoint_manifests"


class Checkpoints:
    """The checkpoints of one workdir."""

    def __init__(self, workdir: pathlib.Path, *, keep: int, metric: str, report: Callable[[str], None]):
        """Opens them, and removes those that are damaged or were never finished.

        Args:
          workdir: of the run.
          keep: how many of the newest to keep, beside the best.
          metric: of the validation split, that makes a checkpoint the best; higher is better.
          report: takes a line for the log.
        """
        self.workdir = workdir.absolute()
        self.metric = metric
        self._finisher = futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-manifest")
        self._unfinished: futures.Future | None = None
        on_primary(lambda: _remove_unusable(self.workdir, report), "checkpoints-verified")
        best = policies.BestN(get_metric_fn=lambda m: m[metric], n=1, keep_checkpoints_without_metrics=False)
        self._manager = ocp.CheckpointManager(
            self.workdir / FOLDER,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
                cleanup_tmp_directories=True,
            ),
        )

    @property
    def latest_step(self) -> int | None:
        """The newest checkpoint's step, or None."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, metrics: Mapping[str, float] | None = None) -> None:
        """Starts writing; returns when the device arrays are copied. Errors of the write before surface here."""
        self.wait()
        metrics = dict(metrics) if metrics else None
        self._manager.save(step, args=_split(state, ocp.args.StandardSave), metrics=metrics)
        self._unfinished = self._finisher.submit(self._finish, step, metrics)

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Restores a step bit for bit, onto the shardings of `like`, whatever topology wrote it."""
        items = self._manager.restore(step, args=_split(like, ocp.args.StandardRestore))
        return TrainState(step=items.progress["step"], params=items.params, opt_state=items.progress["opt_state"])

    def wait(self) -> None:
        """Waits until everything is on disk, manifests included."""
        if self._unfinished is not None:
            self._unfinished.result()
            self._unfinished = None

    def close(self) -> None:
        """Waits and releases the writing threads."""
        self.wait()
        self._finisher.shutdown()
        self._manager.close()

    def _finish(self, step: int, metrics: dict | None) -> None:
        """Hashes what Orbax wrote, as soon as it stands in its final place; Orbax's own hook runs before that."""
        self._manager.wait_until_finished()
        if is_primary():
            manifest = {"step": step, "metrics": metrics, "sha256": hash_files(self.workdir / FOLDER / str(step))}
            write_text(_manifest(self.workdir, step), json.dumps(manifest, indent=1))


def best_step(workdir: pathlib.Path, metric: str) -> int | None:
    """The step whose checkpoint is best by a metric, the newest where none was evaluated, None where there is none."""
    manifests = [json.loads(file.read_text()) for file in (workdir / MANIFESTS).glob("*.json")]
    manifests = [m for m in manifests if (workdir / FOLDER / str(m["step"])).is_dir()]
    evaluated = [m for m in manifests if m["metrics"] and metric in m["metrics"]]
    if evaluated:
        return max(evaluated, key=lambda m: (m["metrics"][metric], -m["step"]))["step"]
    return max((m["step"] for m in manifests), default=None)


def restore_params(workdir: pathlib.Path, step: int, like):
    """Restores only the parameters of a step, onto the shardings of `like`.

    Raises:
      EndxError: when the checkpoint is damaged.
    """
    problem = find_damage(workdir, step)
    if problem:
        raise EndxError(f"checkpoint {step} in {workdir} is damaged: {problem}")
    with ocp.CheckpointManager((workdir / FOLDER).absolute()) as manager:
        return manager.restore(step, args=ocp.args.Composite(params=ocp.args.StandardRestore(like))).params


def hash_files(folder: pathlib.Path) -> dict[str, str]:
    """sha256 of every file below a folder, by relative path."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {file.relative_to(folder).as_posix(): sha256_of(file) for file in files}


def find_damage(workdir: pathlib.Path, step: int) -> str | None:
    """What is wrong with a step's checkpoint, in words; None when every file is as it was written."""
    manifest = _manifest(workdir, step)
    if not manifest.is_file():
        return "it was not finished"
    expected = json.loads(manifest.read_text())["sha256"]
    found = hash_files(workdir / FOLDER / str(step))
    changed = sorted(name for name in expected if found.get(name) != expected[name])
    return f"{changed[0]} is not as it was written" if changed else None


def _split(state: TrainState, wrap):
    """Parameters are an item of their own, so that a model can be loaded without its optimizer."""
    progress = {"step": state.step, "opt_state": state.opt_state}
    return ocp.args.Composite(params=wrap(state.params), progress=wrap(progress))


def _manifest(workdir: pathlib.Path, step: int) -> pathlib.Path:
    return workdir / MANIFESTS / f"{step}.json"


def _remove_unusable(workdir: pathlib.Path, report: Callable[[str], None]) -> None:
    """Removes damaged checkpoints from the newest backwards, up to the first good one, and stale manifests."""
    steps = sorted((int(f.name) for f in (workdir / FOLDER).glob("*") if f.name.isdigit()), reverse=True)
    for step in steps:
        problem = find_damage(workdir, step)
        if not problem:
            break
        shutil.rmtree(workdir / FOLDER / str(step))
        report(f"checkpoint {step} can't be used: {problem}; it is removed and the one before it is used")
    for manifest in (workdir / MANIFESTS).glob("*.json"):
        if not (workdir / FOLDER / manifest.stem).is_dir():
            manifest.unlink()


def abstract(state, shardings):
    """Shapes and shardings of a state, to restore onto."""
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)
