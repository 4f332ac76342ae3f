"""The model of a run and its index, from its workdir."""

import pathlib

from jax.sharding import Mesh

from endx_jax.errors import EndxError
from endx_jax.experiment import workdir as workdirs
from endx_jax.experiment.config import Settings
from endx_jax.experiment.model import best_params, read_model
from endx_jax.loading.embedding_model import EmbeddingModel, Source
from endx_jax.models.dual_encoder import TASKS
from endx_jax.objectives import PairSettings
from endx_jax.retrieval.index import Index


def load_run(workdir: pathlib.Path, mesh: Mesh, name: str) -> EmbeddingModel:
    """Loads the best checkpoint of a run.

    Args:
      workdir: of the run.
      mesh: over which batches are split; every device of it holds all parameters.
      name: what the model is called.

    Raises:
      EndxError: when the workdir holds no checkpoint, or a damaged one, or a model without embeddings.
    """
    model = read_model(workdir)
    _check_embeds(model.settings, workdir)
    params, _ = best_params(workdir, model, mesh)
    prompts = {task: model.preparations[side].prompt for side, task in TASKS.items()}
    return EmbeddingModel(
        name,
        model.text_encoder(mesh),
        params["dual_encoder"],
        cosine=model.settings.model.normalize,
        source=Source(model.sources, workdir),
        named_prompts=prompts,
        # Of both sides, wherever bare `encode` is allowed.
        default_prompt=prompts["query"],
    )


def run_index(workdir: pathlib.Path) -> Index:
    """The index that a run's last evaluation left.

    Raises:
      EndxError: there is none; the message says so of a run without embeddings.
    """
    if (workdir / workdirs.CONFIG).is_file():
        _check_embeds(workdirs.read_config(workdir), workdir)
    return Index(workdir / workdirs.INDEX)


def _check_embeds(settings: Settings, workdir: pathlib.Path) -> None:
    if isinstance(settings.objective, PairSettings):
        raise EndxError(
            f"{workdir} holds a pair classifier (objective.name=pair), which reads question and answer together and "
            "has no embeddings: give it to --rerank of `endx evaluate` or `endx search`, beside a model that has"
        )
