"""A pair classifier: question and answer are read together as one text, and get a score rather than embeddings.

BERT_QA in Yu et al. 2020 (section 4.2) and Wang et al. 2021 (Table 6): `[CLS] question [SEP] answer [SEP]` through one
BERT, whose vector of `[CLS]` a binary classifier receives. Every pair is a text of its own: n questions and m answers
cost n m passes.
"""

import dataclasses
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.batch import Tokens
from endx_jax.errors import EndxError
from endx_jax.models.bert import BertEncoder
from endx_jax.models.dropout import dropout, fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.sharing import SHARINGS

Array = jax.Array

# Apart from the numbers of the encoder's keys, which are those of its layers.
_HEAD_KEYS = 1 << 20


class PairHead(nn.Module):
    """From the vector of a joined text to its score, in float32.

    Attributes:
      pooler: whether a linear map and tanh come first, as in BERT's own classifiers.
      dropout: of what the classifier receives, in training.
      initializer_range: standard deviation of newly drawn weights.
    """

    pooler: bool = True
    dropout: float = 0.0
    initializer_range: float = 0.02

    @nn.compact
    def __call__(self, pooled: Array, dropout_keys: Array | None = None) -> Array:
        """Maps [B, W] to scores [B]; `dropout_keys` [B] switches dropout on."""
        draw = nn.initializers.normal(self.initializer_range)
        pooled = pooled.astype(jnp.float32)
        if self.pooler:
            pooled = jnp.tanh(nn.Dense(pooled.shape[-1], kernel_init=draw, name="pooler")(pooled))
        pooled = dropout(pooled, dropout_keys, self.dropout)
        return nn.Dense(1, kernel_init=draw, name="classifier")(pooled)[:, 0]


@dataclasses.dataclass(frozen=True)
class PairClassifier:
    """One tower up to its pooling, and a head, as a pure function of their parameters.

    The parameters are the tower's, as `DualEncoder` holds them, and the head's.

    Attributes:
      model: its question tower is the one that reads the pairs, as far as what its own head would receive.
        The head scores that: the vector of `[CLS]`, or the mean of all tokens, as the tower pools.
      pooler: whether BERT's linear map and tanh stand before the classifier.

    Raises:
      EndxError: the model is not one BERT that tells two segments apart.
    """

    model: DualEncoder
    pooler: bool = True

    def __post_init__(self):
        encoder = self.model.question.encoder
        if not isinstance(encoder, BertEncoder) or encoder.config.token_types < 2:
            raise EndxError(
                "objective.name=pair reads question and answer as two segments of one text, which only a pretrained "
                "BERT tells apart: choose another model.pretrained, and leave model.encoder empty"
            )
        if self.model.sharing != SHARINGS["sde"]:
            raise EndxError("objective.name=pair reads both texts with one encoder: set model.sharing=sde")

    @property
    def head(self) -> PairHead:
        """Returns the head that scores a vector, with the encoder's dropout."""
        config = self.model.question.encoder.config
        return PairHead(self.pooler, config.dropout, config.initializer_range)

    def init(self, key: Array, tower: dict) -> dict:
        """Draws the head's parameters, for the tower's."""
        tokens = Tokens(ids=jnp.zeros((1, 2), jnp.int32), mask=jnp.ones((1, 2), bool))
        vector = jax.eval_shape(lambda params: self.model.base(params, "question", tokens), tower)
        return self.head.init(key, jnp.zeros(vector.shape))["params"]

    def score(self, tower: dict, head: dict, pairs: Tokens, dropout_keys: Array | None = None) -> Array:
        """Scores joined texts: float32 [B], any numbers, the higher the surer; a sigmoid makes probabilities of them.

        Args:
          tower: the dual encoder's parameters.
          head: the head's.
          pairs: B texts, with their `second`.
          dropout_keys: keys [B]; None switches dropout off.
        """
        one = self.model.question
        variables = {"params": self.model.tower_params(tower, "question")}
        vectors = one.apply(variables, pairs, dropout_keys, method=one.base)
        keys = None if dropout_keys is None else fold(dropout_keys, _HEAD_KEYS)
        return cast(Array, self.head.apply({"params": head}, vectors, keys))
