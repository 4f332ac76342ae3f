"""GRU that learns the embeddings of MiniLM from the texts of ReQA SQuAD, in minutes on two CPU cores.

It can search the indexes of its teacher (docs/dual.md). Any towers can learn from any embedding model: set
`objective.teacher`, `model.*`, and `model.projection` to the teacher's width where the towers' own differs.
"""

import dataclasses

from endx_jax.methods.config import load_recipe
from endx_jax.methods.embedding_distillation import EmbeddingDistillationSettings


def get_config():
    """Returns the config: 51,200 pairs of texts in global batches of 128, with the GRU of `gru_squad`."""
    config = load_recipe("gru_squad").get_config()

    config.objective = dataclasses.asdict(EmbeddingDistillationSettings(teacher="all-MiniLM-L6-v2"))

    config.data.group_size = 1

    config.model.projection = 384

    config.train.steps = 400
    return config
