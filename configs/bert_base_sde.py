"""BERT-base as a Siamese dual encoder on ReQA SQuAD: an untuned baseline that is not from a paper.

The learning rate and its linear decay are those of ENDX's Dual-BERTs (Wang et al. 2021, section 4.4); cosine similarity
with a temperature, batches of articles and masked false negatives are ours.
"""

from endx_jax.methods.config import base_config


def get_config():
    """Returns the config: three epochs of SQuAD's train pairs at a global batch size of 128."""
    config = base_config()

    config.data.path = "reqa/squad"
    config.data.pool = "answers"
    config.data.group_size = 32
    config.data.question_length = 64
    config.data.answer_length = 256
    config.data.validation_fraction = 0.1

    config.model.pretrained = "google-bert/bert-base-uncased"
    config.model.sharing = "sde"

    config.objective.temperature = 0.05

    config.optimizer.learning_rate = 2e-5
    config.optimizer.warmup_steps = 100

    config.train.global_batch_size = 128
    config.train.epochs = 3.0
    config.train.evaluate_every = 500
    config.train.checkpoint_every = 250
    return config
