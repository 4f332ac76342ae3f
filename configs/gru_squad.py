"""GRU trained from scratch on ReQA SQuAD in minutes on two CPU cores: `gru_squad.py:METHOD`.

The methods are `dual`; `endx`, with MiniLM's embeddings as the teacher's (docs/endx.md says why); and `endx_cross`,
with the paper's own teacher.

For experiments with methods, not from a paper: width 256 on MiniLM's frozen token embeddings, unit vectors with a
temperature, batches of articles. The learning rate was selected on held-out articles.
"""

import dataclasses

from endx_jax.methods.config import base_config
from endx_jax.methods.dual import DualSettings
from endx_jax.methods.endx import EndxSettings
from endx_jax.settings import check_choice

TEMPERATURE = 0.05
CROSS = EndxSettings(
    temperature=TEMPERATURE,
    alignment_temperatures=(TEMPERATURE, TEMPERATURE),
    ramp_epochs=0.0,
    ramp_steps=40,
    cross_heads=8,
    teacher_shares="token_embedder",
)
METHODS = {
    "dual": DualSettings(temperature=TEMPERATURE),
    "endx": dataclasses.replace(CROSS, ramp_steps=0, diagonal=False, teacher_model="all-MiniLM-L6-v2"),
    "endx_cross": CROSS,
}


def get_config(method: str = "dual"):
    """Returns the config for a method: 25,600 pairs in global batches of 128."""
    check_choice("METHOD of gru_squad:METHOD", method, METHODS)
    config = base_config(METHODS[method])

    config.data.path = "reqa/squad"
    config.data.pool = "answers"
    config.data.group_size = 32
    config.data.question_length = 32
    config.data.answer_length = 64
    config.data.validation_fraction = 0.1

    config.model.pretrained = "all-MiniLM-L6-v2"
    config.model.encoder = "gru"
    config.model.new_encoder.width = 256
    config.model.pooling = "multi_hop"
    config.model.dropout = 0.0

    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 20
    config.optimizer.frozen = ("token_embedder/",)

    config.train.global_batch_size = 128
    config.train.epochs = 0.0
    config.train.steps = 200
    config.train.checkpoint_every = 100
    return config
