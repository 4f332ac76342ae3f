"""Teachers of other runs (`objective.teacher_from`)."""

import pathlib
from typing import Any

import jax
import numpy as np

from endx_jax import json_files, pretrained
from endx_jax.errors import EndxError
from endx_jax.methods.method import find_method
from endx_jax.models.dual_encoder import SIDES
from endx_jax.parallel.sharding import parameter_paths
from endx_jax.pretrained.settings import ModelSettings
from endx_jax.pretrained.towers import build_dual_encoder
from endx_jax.settings import check, from_mapping
from endx_jax.training.checkpoints import best_step, restore_params


def read_teacher(workdir: pathlib.Path, like: dict, method: str) -> dict:
    """Reads the teacher of the best checkpoint of a run.

    Args:
      workdir: the run's folder.
      like: parameters of the teacher in the run that takes it, for their paths and shapes.
      method: method of the run: `endx`, whose teacher is taken, or `pair`, which is a teacher.

    Returns:
      A tree like `like`, as NumPy arrays.

    Raises:
      EndxError: there is no such run, its teacher has another architecture, or its checkpoint is missing or damaged.
    """
    where = f"objective.teacher_from={workdir}"
    metric = _section(workdir, "evaluation", method).get("metric")
    step = best_step(workdir, str(metric))
    if step is None:
        raise EndxError(f"{where} holds no checkpoint yet: finish its training, or name another workdir")
    # Host arrays without memory of their own, so that Orbax restores to the host.
    wanted = jax.tree.map(lambda leaf: np.broadcast_to(np.float32(0), leaf.shape), like)
    tree = {"teacher": wanted} if method == "endx" else wanted
    found = restore_params(workdir, step, tree)
    found = found["teacher"] if method == "endx" else found
    for path, leaf in parameter_paths(found).items():
        finite = bool(np.isfinite(leaf).all())
        check(finite, f"{where}: {path} of checkpoint {step} holds NaN or infinity; name another workdir")
    return found


def teacher_objective(workdir: pathlib.Path) -> Any:
    """Builds the objective of a pair classifier's run, without parameters.

    Raises:
      EndxError: there is no such run, or a file of its model is missing.
    """
    method = find_method("pair")
    settings = {
        name: from_mapping(cls, _section(workdir, name, method.name), f"{workdir / CONFIG}: {name}")
        for name, cls in (("model", ModelSettings), ("objective", method.settings))
    }
    source = pretrained.load(str(workdir / "model"))
    model = build_dual_encoder(settings["model"], dict.fromkeys(SIDES, source))
    return method.objective(model, settings["objective"])


CONFIG = "config.json"


def _section(workdir: pathlib.Path, name: str, method: str) -> dict:
    """Returns a section of the config of a run.

    Raises:
      EndxError: the workdir holds no run of the method.
    """
    about = json_files.read_optional(workdir / CONFIG)
    objective = json_files.mapped(about.get("objective", {}), f"{workdir / CONFIG}: 'objective'")
    check(
        objective.get("name") == method,
        f"objective.teacher_from={workdir} holds no run of objective.name={method}: name the workdir of one",
    )
    return json_files.mapped(about.get(name, {}), f"{workdir / CONFIG}: {name!r}")
