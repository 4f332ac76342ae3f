"""MiniLM as a pair classifier on ReQA SQuAD, in minutes on two CPU cores: a small `bert_qa` that is not from a paper.

The head is new and the run is short, so the head's learning rate is ten times the encoder's, and there is no pooler.
The wrong answers of a question come from its own paragraph and its own article.
"""

from endx_jax.methods.config import base_config
from endx_jax.methods.pair import PairSettings


def get_config():
    """Returns the config: 2,240 of SQuAD's train questions, 16 in a batch, each with four answers."""
    config = base_config(PairSettings(negatives=2, pooler=False, top=10, questions=100))

    config.data.path = "reqa/squad"
    config.data.pool = "answers"
    config.data.group_size = 16
    config.data.hard_negatives = 1
    config.data.question_length = 32
    config.data.answer_length = 64
    config.data.validation_fraction = 0.1

    config.model.pretrained = "all-MiniLM-L6-v2"
    config.model.pooling = "first"
    config.model.dropout = 0.0
    config.model.attention_dropout = 0.0

    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup_steps = 10
    config.optimizer.multipliers = (("^pair/", 10.0), ("^dual_encoder/", 1.0))

    config.train.global_batch_size = 16
    config.train.epochs = 0.0
    config.train.steps = 140
    config.train.checkpoint_every = 70

    # Scoring the pools of these views pair by pair takes too long.
    config.evaluation.min_questions = ()
    return config
