"""A pair classifier, from the workdir of its run."""

import dataclasses
import pathlib
from collections.abc import Sequence

import jax

from endx_jax.errors import EndxError
from endx_jax.experiment.console import showing_progress
from endx_jax.experiment.model import best_params, read_model
from endx_jax.experiment.pairs import pair_scorer
from endx_jax.objectives import PairSettings
from endx_jax.parallel.mesh import MeshSettings, make_mesh
from endx_jax.retrieval.pair_scores import PairScorer, ScorePairs


@dataclasses.dataclass(frozen=True, eq=False)
class PairModel:
    """Scores pairs of a question and an answer.

    Attributes:
      name: what was loaded.
      scorer: the classifier, and how the texts of each side become tokens.
      params: of both.
    """

    name: str
    scorer: PairScorer
    params: dict

    def __call__(self, questions: Sequence[str], answers: Sequence[str]) -> ScorePairs:
        """What scores pairs of these texts, given by their rows: see `PairScorer`."""
        return self.scorer(self.params, questions, answers, progress=showing_progress())


def load_pairs(workdir: pathlib.Path) -> PairModel:
    """Loads the best checkpoint of a run whose `objective.name` is `pair`.

    Raises:
      EndxError: when there is no such run, or no checkpoint of it, or a damaged one.
    """
    model = read_model(workdir)
    if not isinstance(model.settings.objective, PairSettings):
        raise EndxError(
            f"{workdir} holds a run of objective.name={model.settings.objective.name}: --rerank takes one of "
            "objective.name=pair, a pair classifier"
        )
    mesh = make_mesh(MeshSettings(), jax.local_devices())
    params, _ = best_params(workdir, model, mesh)
    return PairModel(str(workdir), pair_scorer(model, mesh), params)
