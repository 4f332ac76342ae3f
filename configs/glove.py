"""IDF-weighted word vectors for retrieving SQuAD's paragraphs (RR, section 3.1): `glove.py`, or `glove.py:plain`.

The row `untrained` of the results is the paper's system: the mean of GloVe vectors, each multiplied by the IDF of its
word (`plain`: unweighted), scaled to unit norm. The paper uses 300 dimensions (840B tokens):
`--config.model.pretrained=glove.840B.300d.txt` reads them from Stanford's file. The default is 50 dimensions (6B) from
a PyPI package. The paper counts document frequencies in the texts that are searched; this recipe counts them in the
training file (docs/frozen-embeddings.md).

The row `trained` is not in the paper: it trains the vectors by the in-batch softmax, in a minute on two CPU cores.
"""

from endx_jax.methods.config import base_config
from endx_jax.settings import check_choice

WEIGHTINGS = {"idf": "idf", "plain": ""}


def get_config(weighting: str = "idf"):
    """Returns the config for a weighting: 25,600 pairs in global batches of 128 from four articles each."""
    check_choice("WEIGHTING of glove:WEIGHTING", weighting, WEIGHTINGS)
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
