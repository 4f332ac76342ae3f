"""ENDX and its dual baselines on ReQA SQuAD (Wang et al. 2021): `endx.py:METHOD,ENCODER`, such as `endx.py:endx,gru`.

Stated in the paper (section 4.4): BERT-base encoders with AdamW, batch 12, 30 epochs, 2e-5 with linear decay; other
encoders with 2 layers on BERT's 768-wide token embeddings, batch 100, 100 epochs, a constant 1e-5; inner products
without temperature; 12 heads; loss weights .25, .25 and .5; alignment weights 0.5 for a|q and q|a and 1e4 for q|q and
a|a, rising over 5 epochs; the checkpoint selected by R@1 on a tenth of the train data. Not stated, and chosen here
(after public code of the same authors if possible): lengths 35 and 65, one encoder for both sides, the mean of 10 hops,
weight decay 0.01, gradients clipped to norm 1, no warm-up, dropout 0.1, a trained token table, and bidirectional
recurrences of width 768.
"""

from endx_jax.methods.config import base_config
from endx_jax.methods.dual import DualSettings
from endx_jax.methods.endx import EndxSettings
from endx_jax.settings import check_choice

METHODS = ("dual", "endx")
ENCODERS = ("rnn", "gru", "lstm", "transformer", "bert")


def get_config(arguments: str = "endx,bert"):
    """Returns the config for `METHOD,ENCODER`."""
    method, _, encoder = arguments.partition(",")
    check_choice("METHOD of endx:METHOD,ENCODER", method, METHODS)
    check_choice("ENCODER of endx:METHOD,ENCODER", encoder, ENCODERS)
    config = base_config(EndxSettings() if method == "endx" else DualSettings())

    config.data.path = "reqa/squad"
    config.data.pool = "answers"
    config.data.question_length = 35
    config.data.answer_length = 65
    config.data.validation_fraction = 0.1
    config.data.held_out_by = "questions"

    config.model.pretrained = "google-bert/bert-base-uncased"
    config.model.sharing = "sde"
    config.model.pooling = "multi_hop"
    config.model.normalize = False

    config.objective.temperature = 1.0
    config.objective.mask_false_negatives = False
    if method == "endx":
        config.objective.weights = (("a|q", 0.5), ("q|q", 1e4), ("q|a", 0.5), ("a|a", 1e4))
        config.objective.ramp_epochs = 5.0

    config.evaluation.metric = "recall@1"
    if encoder == "bert":
        config.optimizer.learning_rate = 2e-5
        config.train.global_batch_size = 12
        config.train.epochs = 30.0
        config.train.evaluate_every = 6500
    else:
        config.model.encoder = encoder
        config.optimizer.learning_rate = 1e-5
        config.optimizer.schedule = "constant"
        config.train.global_batch_size = 100
        config.train.epochs = 100.0
        config.train.evaluate_every = 800
    config.train.checkpoint_every = 800
    return config
