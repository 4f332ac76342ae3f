"""MiniLM with an embedding for each token (late interaction), from its single-vector recipe: `late:RECIPE`.

`late:minilm` trains on the pairs in `data.path`, and `late:minilm_squad` on ReQA SQuAD with the pairs, batches and seed
of `minilm_squad`. The projection of each token, new with encoders such as MiniLM, learns at a higher rate.
"""

import dataclasses

from endx_jax.methods.config import load_recipe
from endx_jax.methods.late import LateSettings


def get_config(recipe: str = "minilm"):
    """Returns the config of a recipe of the dual encoder, with 128 numbers for each token, scored by MaxSim."""
    config = load_recipe(recipe).get_config()
    config.objective = dataclasses.asdict(LateSettings())
    config.model.pooling = "tokens"
    config.model.projection = 128
    config.optimizer.multipliers = (("/projection/", 20.0), ("^(?!.*/projection/)", 1.0))
    return config
