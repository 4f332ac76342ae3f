"""Word vectors weighted by IDF, retrieving SQuAD's paragraphs (RR, section 3.1): `glove.py`, or `glove.py:plain`.

The row `untrained` of the results is the paper's system: mean of GloVe's vectors, each times its word's IDF (`plain`:
without), unit norm. The paper has 300 dimensions (840B tokens), which `--config.model.pretrained=glove.840B.300d.txt`
gives from Stanford's file; here are the 50 (6B) that a package carries. The paper takes document frequencies from the
texts that are searched, this recipe from the train file; `endx layers` has the paper's (docs/frozen-embeddings.md).

The row `trained` is ours: the vectors themselves trained by the in-batch softmax, in a minute of two CPU cores.
"""

from endx_jax.errors import EndxError, nearest
from endx_jax.recipes import base

WEIGHTINGS = {"idf": "idf", "plain": ""}


def get_config(weighting: str = "idf"):
    """The config for a weighting: some 25,600 pairs at a global batch of 128 from four articles."""
    if weighting not in WEIGHTINGS:
        raise EndxError(f"glove:{weighting} is none of {', '.join(WEIGHTINGS)}{nearest(weighting, WEIGHTINGS)}")
    config = base.get_config()

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
