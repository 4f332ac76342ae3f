"""Pair classifier (cross-encoder): reads question and answer as one text, and computes a score.

BERT_QA in Yu et al. 2020 (section 4.2) and Wang et al. 2021 (Table 6): `[CLS] question [SEP] answer [SEP]` through one
BERT, with a binary classifier on the vector of `[CLS]`. n questions and m answers need n m passes.
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
    """Classifier from the vector of a joined text to its score, in float32.

    Attributes:
      pooler: applies a linear map and tanh first, as in BERT's classifiers.
      dropout: of the classifier's input, in training.
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
    """Tower up to its pooling, and a classifier, as pure functions of their parameters.

    The parameters are those of the tower, as in `DualEncoder`, and of the classifier.

    Attributes:
      model: its question tower reads the pairs; the classifier scores the pooled vector (of `[CLS]`, or the mean).
      pooler: applies BERT's linear map and tanh before the classifier.

    Raises:
      EndxError: the model is not one BERT with two segments.
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
        """Scores joined texts: logits, float32 [B].

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
