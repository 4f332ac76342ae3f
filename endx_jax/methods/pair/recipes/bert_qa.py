"""BERT_QA on ReQA SQuAD: one BERT that reads question and answer together, a row of Wang et al. 2021 (Table 6).

No paper gives its settings: learning rate, linear decay and 10 per cent of train for validation are those of ENDX's
BERTs (section 4.2); loss, number of negatives and passes are ours (docs/pair-classifier.md).
"""

from endx_jax.methods.config import base_config
from endx_jax.methods.pair import PairSettings


def get_config():
    """Two passes over SQuAD's train pairs, 16 questions a batch, each with four answers."""
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

    # Each pool is scored pair by pair.
    config.evaluation.min_questions = ()
    return config
