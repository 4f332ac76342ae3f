"""Retrieval of SQuAD's paragraphs by IDF-weighted word vectors (RR, section 3.1): `glove.py`, or `glove.py:plain`.

The row `untrained` of the results is the paper's system: the mean of GloVe vectors, each multiplied by its word's IDF
(`plain`: without), scaled to unit norm. The paper uses 300 dimensions (840B tokens), which
`--config.model.pretrained=glove.840B.300d.txt` reads from Stanford's file; the default is the 50 dimensions (6B) of a
PyPI package. The paper counts document frequencies in the texts that are searched, as `endx papers layers` does; this
recipe counts them in the training file (docs/frozen-embeddings.md).

The row `trained` is not in the paper: it trains the vectors with the in-batch softmax, in a minute on two CPU cores.
"""

from endx_jax.errors import EndxError, nearest
from endx_jax.methods.config import base_config

WEIGHTINGS = {"idf": "idf", "plain": ""}


def get_config(weighting: str = "idf"):
    """The config for a weighting: some 25,600 pairs at a global batch of 128 from four articles."""
    if weighting not in WEIGHTINGS:
        raise EndxError(f"glove:{weighting} is none of {', '.join(WEIGHTINGS)}{nearest(weighting, WEIGHTINGS)}")
    config = base_config()

    config.data.path = "squad"
    config.data.pool = "paragraphs"
    config.data.group_size = 32
    config.data.question_length = 64
    config.data.answer_length = 512
    config.data.validation_fraction = 0.1

    config.model.pretrained = "glove-6b-50d"
    config.model.encoder = "none"
    config.model.token_weights = WEIGHTINGS[weighting]

    config.objective.temperature = 0.05

    config.optimizer.learning_rate = 1e-2
    config.optimizer.weight_decay = 0.0
    config.optimizer.warmup_steps = 20

    config.train.global_batch_size = 128
    config.train.epochs = 0.0
    config.train.steps = 200
    config.train.checkpoint_every = 100

    config.evaluation.metric = "recall@1"
    config.evaluation.reverse = True
    return config
