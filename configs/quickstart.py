"""Quickstart: MiniLM fine-tuned on docstrings as a Siamese dual encoder, in a few minutes on two CPU cores."""

from endx_jax.methods.config import base_config


def get_config():
    """Returns the config: 36 steps with global batches of 64 docstring pairs; up to 3,000 test questions."""
    config = base_config()

    config.data.path = "docstrings"
    config.data.question_length = 32
    config.data.answer_length = 64
    config.data.validation_fraction = 0.04
    config.data.test_fraction = 0.4
    config.data.max_test_questions = 3000

    config.model.pretrained = "all-MiniLM-L6-v2"
    config.model.dropout = 0.0
    config.model.attention_dropout = 0.0

    config.objective.temperature = 0.05

    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 4

    config.train.global_batch_size = 64
    config.train.epochs = 0.0
    config.train.steps = 36
    config.train.log_every = 4
    config.train.checkpoint_every = 18
    return config
