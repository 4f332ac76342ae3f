"""MiniLM fine-tuned on ReQA SQuAD as a Siamese dual encoder, in 25 minutes on two CPU cores.

On held-out articles of the train file, one or two articles per batch and learning rates of 5e-5 or 1e-4 gave equal
results (docs/results.md). Short lengths and no dropout are for speed on a CPU.
"""

from endx_jax.methods.config import base_config


def get_config():
    """Some 23,000 of SQuAD's train pairs, at a global batch of 64 from one article."""
    config = base_config()

    config.data.path = "reqa/squad"
    config.data.pool = "answers"
    config.data.group_size = 64
    config.data.question_length = 32
    config.data.answer_length = 64
    config.data.validation_fraction = 0.1

    config.model.pretrained = "all-MiniLM-L6-v2"
    config.model.dropout = 0.0
    config.model.attention_dropout = 0.0

    config.objective.temperature = 0.05

    config.optimizer.learning_rate = 5e-5
    config.optimizer.warmup_steps = 10

    config.train.global_batch_size = 64
    config.train.epochs = 0.0
    config.train.steps = 360
    config.train.checkpoint_every = 120
    return config
