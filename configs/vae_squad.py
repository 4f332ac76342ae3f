"""Three systems of Yu et al. from scratch on ReQA SQuAD in minutes on two CPU cores: `vae_squad.py:METHOD`.

METHOD is `dual`, `dual_vae` or `cross_vae`. For experiments with methods, not from the paper: one bidirectional GRU
layer of width 256 on MiniLM's frozen token embeddings, one tower for both sides, batches of articles, and the in-batch
softmax as matching loss, which learns most from few pairs. docs/vae.md gives the reasons.
"""

import dataclasses

from endx_jax.methods.config import base_config
from endx_jax.methods.vae import MatchingSettings, VaeSettings
from endx_jax.settings import check_choice

STEPS = 120
CROSS = VaeSettings(
    match="inbatch",
    temperature=0.05,
    match_on="mean",
    decodes="other",
    decoder="bag_of_words",
    decoder_width=256,
    reconstruction_weight=0.1,
    kl_weight=0.01,
    anneal_epochs=0.0,
    anneal_steps=STEPS // 2,
    mean_scale=16.0,
    initial_deviation=0.3,
)
METHODS = {
    "dual": MatchingSettings(match="inbatch", temperature=0.05),
    "dual_vae": dataclasses.replace(CROSS, decodes="own"),
    "cross_vae": CROSS,
}


def get_config(method: str = "cross_vae"):
    """Returns the config for a method: 15,360 pairs in global batches of 128."""
    check_choice("METHOD of vae_squad:METHOD", method, METHODS)
    config = base_config(METHODS[method])

    config.data.path = "reqa/squad"
    config.data.pool = "answers"
    config.data.group_size = 32
    config.data.question_length = 32
    config.data.answer_length = 48
    config.data.validation_fraction = 0.05

    config.model.pretrained = "all-MiniLM-L6-v2"
    config.model.encoder = "gru"
    config.model.new_encoder.layers = 1
    config.model.new_encoder.width = 256
    config.model.pooling = "multi_hop"
    config.model.projection = 256
    config.model.dropout = 0.0

    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 10
    config.optimizer.frozen = ("token_embedder/",)
    # The new decoders and deviations need higher learning rates, as the run is short; a bias changes all deviations.
    config.optimizer.multipliers = (
        (r"^decoder/", 5.0),
        (r"^deviation/.*bias$", 20.0),
        (r"^(?!decoder/|deviation/.*bias$)", 1.0),
    )

    config.train.global_batch_size = 128
    config.train.epochs = 0.0
    config.train.steps = STEPS
    config.train.checkpoint_every = STEPS
    return config
