"""The numbers of a run in Weights & Biases, where `train.wandb_project` asks for it."""

import importlib.util
import pathlib
import uuid

from endx_jax.errors import EndxError
from endx_jax.files import write_text

ID_FILE = "wandb_id"  # of the run there, which a resumed training goes on with


def check_installed(project: str) -> None:
    """Raises EndxError where a project is named and the library is not installed."""
    if project and importlib.util.find_spec("wandb") is None:
        raise EndxError("train.wandb_project needs Weights & Biases: pip install 'endx_jax[wandb]', or leave it empty")


class WandbLog:
    """Sends numbers; the library does so on a thread, and keeps them in the workdir's `wandb` as well."""

    def __init__(self, workdir: pathlib.Path, project: str):
        """Opens the workdir's run of a project, or begins it.

        Raises:
          EndxError: when Weights & Biases refuses.
        """
        import wandb

        id_file = workdir / ID_FILE
        if not id_file.exists():
            write_text(id_file, uuid.uuid4().hex)
        name, run_id = workdir.absolute().name, id_file.read_text()
        try:
            self._run = wandb.init(project=project, name=name, id=run_id, resume="allow", dir=str(workdir))
        except wandb.Error as failure:
            raise EndxError(
                f"Weights & Biases does not take train.wandb_project={project} ({' '.join(str(failure).split())}): "
                "log in with `wandb login`, or set WANDB_MODE=offline"
            ) from None

    def write(self, step: int, values: dict[str, float]) -> None:
        """Sends the numbers of a step; Weights & Biases passes over steps that it has."""
        self._run.log(values, step=step)

    def close(self) -> None:
        """Waits until everything is sent."""
        self._run.finish()
