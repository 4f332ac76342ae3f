"""The model of a run, from its workdir."""

import pathlib

from jax.sharding import Mesh

from endx_jax.experiment.model import best_params, read_model
from endx_jax.loading.embedding_model import EmbeddingModel, Source
from endx_jax.models.dual_encoder import TASKS


def load_run(workdir: pathlib.Path, mesh: Mesh, name: str) -> EmbeddingModel:
    """Loads the best checkpoint of a run.

    Args:
      workdir: of the run.
      mesh: over which batches are split; every device of it holds all parameters.
      name: what the model is called.

    Raises:
      EndxError: when the workdir holds no checkpoint, or a damaged one.
    """
    model = read_model(workdir)
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
