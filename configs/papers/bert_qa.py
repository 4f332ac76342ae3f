"""BERT_QA on ReQA SQuAD: a BERT that reads question and answer jointly (Wang et al. 2021, Table 6).

No paper states its settings. Learning rate, linear decay and a validation set of 10 % of train are those of ENDX's
BERTs (section 4.4); loss, number of negatives and epochs are our choices (docs/pair-classifier.md).
"""

from endx_jax.methods.config import base_config
from endx_jax.methods.pair import PairSettings


def get_config():
    """Returns the config: two epochs of SQuAD's train pairs, 16 questions in a batch, each with four answers."""
    config = base_config(PairSettings())

    config.data.path = "reqa/squad"
    config.data.pool = "answers"
    config.data.group_size = 16
    config.data.question_length = 64
    config.data.answer_length = 256
    config.data.validation_fraction = 0.1

    config.model.pretrained = "google-bert/bert-base-uncased"
    config.model.pooling = "first"

    config.optimizer.learning_rate = 2e-5
    config.optimizer.warmup_steps = 500

    config.train.global_batch_size = 16
    config.train.epochs = 2.0
    config.train.evaluate_every = 1000
    config.train.checkpoint_every = 500

    # Scoring the pools of these views pair by pair takes too long.
    config.evaluation.min_questions = ()
    return config
