"""MiniLM distilled from a cross-encoder on ReQA SQuAD: `minilm_squad` with the objective of Wang et al. 2021.

Data, lengths, batches, steps and learning rate are those of `minilm_squad`, for comparison; a step costs more than
twice as much. Unit vectors need a temperature in the alignment too. docs/endx.md explains why the weights differ from
the paper's.
"""

import dataclasses

from endx_jax.methods.config import load_recipe
from endx_jax.methods.endx import EndxSettings


def get_config():
    """Returns the config: 23,040 of SQuAD's train pairs in global batches of 64 from one article each."""
    config = load_recipe("minilm_squad").get_config()
    temperature = config.objective.temperature
    config.objective = dataclasses.asdict(
        EndxSettings(
            temperature=temperature,
            alignment_temperatures=(temperature, temperature),
            ramp_epochs=0.0,
            ramp_steps=config.train.steps // 6,
        )
    )
    return config
