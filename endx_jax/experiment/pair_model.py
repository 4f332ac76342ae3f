"""Pair classifier loaded from the workdir of its run."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

import jax

from endx_jax.errors import EndxError
from endx_jax.experiment.model import best_params, read_model
from endx_jax.parallel.console import showing_progress
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.retrieval.rerank import ScorePairs


@dataclasses.dataclass(frozen=True, eq=False)
class PairModel:
    """Scorer of pairs of a question and an answer.

    Attributes:
      name: workdir that was loaded.
      scorer: (params, questions, answers, progress=...) to a scorer of their pairs: the method's `pair_scorer`.
      params: of tower and classifier.
    """

    name: str
    scorer: Callable[..., ScorePairs]
    params: dict = dataclasses.field(repr=False)

    def __call__(self, questions: Sequence[str], answers: Sequence[str]) -> ScorePairs:
        """Returns a function that scores pairs of these texts, given by rows: see `retrieval.rerank`."""
        return self.scorer(self.params, questions, answers, progress=showing_progress())


def load_pairs(workdir: pathlib.Path) -> PairModel:
    """Loads the best checkpoint of a run whose method scores pairs.

    Raises:
      EndxError: there is no such run, or its checkpoint is missing or damaged.
    """
    model = read_model(workdir)
    if model.method.pair_scorer is None:
        raise EndxError(
            f"{workdir} holds a run of objective.name={model.settings.objective.name}: --rerank takes one of "
            "objective.name=pair, a pair classifier"
        )
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    params, _ = best_params(workdir, model, mesh)
    batch_size = model.settings.evaluation.batch_size
    return PairModel(
        str(workdir), model.method.pair_scorer(model.objective, model.processors, mesh, batch_size), params
    )
