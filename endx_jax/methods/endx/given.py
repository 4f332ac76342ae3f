"""Teachers of other runs (`objective.teacher_from`)."""

import pathlib

import jax
import numpy as np

from endx_jax import json_files
from endx_jax.errors import EndxError
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.settings import check
from endx_jax.training.checkpoints import best_step, restore_params


def read_teacher(workdir: pathlib.Path, like: dict) -> dict:
    """Reads the teacher of the best checkpoint of an ENDX run.

    Args:
      workdir: the run's folder.
      like: parameters of the teacher in the run that takes it, for their paths and shapes.

    Returns:
      A tree like `like`, as NumPy arrays.

    Raises:
      EndxError: there is no such run, its teacher has another architecture, or its checkpoint is missing or damaged.
    """
    where, file = f"objective.teacher_from={workdir}", workdir / "config.json"
    about = json_files.read_optional(file)
    objective, evaluation = (
        json_files.mapped(about.get(name, {}), f"{file}: {name!r}") for name in ("objective", "evaluation")
    )
    check(
        objective.get("name") == "endx",
        f"{where} holds no run of objective.name=endx: name the workdir of one",
    )
    step = best_step(workdir, str(evaluation.get("metric")))
    if step is None:
        raise EndxError(f"{where} holds no checkpoint yet: finish its training, or name another workdir")
    # Host arrays without memory of their own, so that Orbax restores to the host.
    wanted = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), like)
    found = restore_params(workdir, step, {"teacher": wanted})["teacher"]
    for path, leaf in parameter_paths(found).items():
        finite = bool(np.isfinite(leaf).all())
        check(finite, f"{where}: {path} of checkpoint {step} holds NaN or infinity; name another workdir")
    return found
