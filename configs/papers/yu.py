"""The three systems of Yu et al. 2020 on ReQA SQuAD: `yu.py:METHOD`, `dual`, `dual_vae` or `cross_vae`.

Stated in the paper (sections 3.2 and 4.3): GRUs of 768 units over 768-wide BERT token embeddings, multi-hop pooling, a
latent space of 512, cosines; Adam at 1e-5, 100 epochs. Not stated, and chosen here: batches of 100, lengths 35 and 65,
the mean of 10 hops; one forward layer and two separate towers and token tables (as in an unofficial port); matching by
Eq. 6, binary cross-entropy, with every other answer of the batch as a wrong one (the port, citing the authors, has the
squared error and 2 wrong answers: `objective.match=mse`, `negatives=2`); no weight decay, gradients clipped to norm 1.
Not as in the paper: it initialises whole words, unknown ones by the mean of their word pieces, and here the word pieces
are the tokens; it keeps 7,801 of the train file's 87,355 questions for validation (the counts are those of questions,
so its split is by question), and here a tenth of the articles is kept.
"""

from endx_jax.methods.config import base_config
from endx_jax.methods.vae import MatchingSettings, VaeSettings
from endx_jax.settings import check_choice

METHODS = {
    "dual": MatchingSettings(),
    "dual_vae": VaeSettings(decodes="own"),
    "cross_vae": VaeSettings(decodes="other"),
}


def get_config(method: str = "cross_vae"):
    """Returns the config for a method."""
    check_choice("METHOD of yu:METHOD", method, METHODS)
    config = base_config(METHODS[method])
    config.objective.match = "bce"
    config.objective.negatives = 0
    config.objective.mask_false_negatives = False

    config.data.path = "reqa/squad"
    config.data.pool = "answers"
    config.data.question_length = 35
    config.data.answer_length = 65
    config.data.validation_fraction = 0.1

    config.model.pretrained = "google-bert/bert-base-uncased"
    config.model.sharing = "ade"
    config.model.encoder = "gru"
    config.model.new_encoder.layers = 1
    config.model.new_encoder.bidirectional = False
    config.model.pooling = "multi_hop"
    config.model.projection = 512
    config.model.dropout = 0.0

    config.optimizer.learning_rate = 1e-5
    config.optimizer.schedule = "constant"
    config.optimizer.weight_decay = 0.0

    config.train.global_batch_size = 100
    config.train.epochs = 100.0
    config.train.evaluate_every = 800
    config.train.checkpoint_every = 800
    return config
