"""Pair classifier (cross-encoder): scores question and answer jointly as one text.

BERT_QA in Yu et al. 2020 (section 4.2) and Wang et al. 2021 (Table 6): one BERT encodes
`[CLS] question [SEP] answer [SEP]`, and a binary classifier scores the vector of `[CLS]`. Scoring n questions against m
answers costs n m passes. Classifiers of other families (`cross_encoder`) differ in the pooler and the segments.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp

from endx_jax.batch import Tokens
from endx_jax.errors import EndxError
from endx_jax.models.dropout import dropout, fold
from endx_jax.models.dual_encoder import DualEncoder
from endx_jax.models.layers import ACTIVATIONS
from endx_jax.models.transformer import TransformerEncoder

Array = jax.Array

# Key number of the head's dropout; the encoder uses the numbers of its layers.
_HEAD_KEYS = 1 << 20


POOLER_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, **ACTIVATIONS}


@dataclasses.dataclass(frozen=True)
class Pooler:
    """Layer before the classifier: a linear map, an activation and, in some families, a norm. The default is BERT's.

    Attributes:
      activation: of `POOLER_ACTIVATIONS`.
      use_bias: adds a bias to the linear map.
      norm_epsilon: epsilon of the layer normalisation; None: there is no norm.
      norm_bias: adds a bias after the normalisation.
    """

    activation: str = "tanh"
    use_bias: bool = True
    norm_epsilon: float | None = None
    norm_bias: bool = False


class PairHead(nn.Module):
    """Maps the vector of a joined text to its score, in float32.

    Attributes:
      pooler: layer before the classifier; None: there is none.
      dropout: dropout rate of the classifier's input.
      initializer_range: standard deviation of the initial weights.
    """

    pooler: Pooler | None = Pooler()
    dropout: float = 0.0
    initializer_range: float = 0.02

    @nn.compact
    def __call__(self, pooled: Array, dropout_keys: Array | None = None) -> Array:
        """Maps vectors [B, W] to scores [B]; dropout is on if `dropout_keys` [B] are given."""
        draw = nn.initializers.normal(self.initializer_range)
        pooled = pooled.astype(jnp.float32)
        pooler = self.pooler
        if pooler:
            dense = nn.Dense(pooled.shape[-1], use_bias=pooler.use_bias, kernel_init=draw, name="pooler")
            pooled = POOLER_ACTIVATIONS[pooler.activation](dense(pooled))
            if pooler.norm_epsilon is not None:
                norm = nn.LayerNorm(
                    pooler.norm_epsilon, use_bias=pooler.norm_bias, use_fast_variance=False, name="norm"
                )
                pooled = norm(pooled)
        pooled = dropout(pooled, dropout_keys, self.dropout)
        return nn.Dense(1, kernel_init=draw, name="classifier")(pooled)[:, 0]


@dataclasses.dataclass(frozen=True)
class PairClassifier:
    """A tower up to its pooling and a scoring head, as a pure function of their parameters.

    Attributes:
      model: dual encoder whose question tower encodes and pools the pairs; `model.pooling` selects the vector that is
        scored: the encoding of `[CLS]`, or the mean of all tokens.
      pooler: layer before the classifier; None: there is none.
      segments: gives the second text of a pair the second segment embedding.

    Raises:
      EndxError: the model is not a single transformer, or has no segment embeddings for `segments`.
    """

    model: DualEncoder
    pooler: Pooler | None = Pooler()
    segments: bool = True

    def __post_init__(self):
        encoder = self.model.question.encoder
        if not isinstance(encoder, TransformerEncoder) or (self.segments and encoder.config.token_types < 2):
            raise EndxError(
                "objective.name=pair reads question and answer as two segments of one text; only a pretrained BERT has "
                "segment embeddings: choose another model.pretrained, and leave model.encoder empty"
            )
        if not self.model.sharing.shared >= {"token_embedder", "encoder"}:
            raise EndxError("objective.name=pair has one encoder for both texts: set model.sharing=sde")

    @property
    def head(self) -> PairHead:
        """Scoring head with the encoder's dropout rate."""
        config = self.model.question.encoder.config
        return PairHead(self.pooler, config.dropout, config.initializer_range)

    def init(self, key: Array, tower: dict) -> dict:
        """Returns the head's initial parameters for a given tower's."""
        tokens = Tokens(ids=jnp.zeros((1, 2), jnp.int32), mask=jnp.ones((1, 2), bool))
        vector = jax.eval_shape(lambda params: self.model.base(params, "question", tokens), tower)
        return self.head.init(key, jnp.zeros(vector.shape))["params"]

    def score(self, tower: dict, head: dict, pairs: Tokens, dropout_keys: Array | None = None) -> Array:
        """Scores joined texts.

        Args:
          tower: parameters of the dual encoder.
          head: parameters of the head.
          pairs: B joined texts, with their `second`.
          dropout_keys: PRNG keys [B]; None disables dropout.

        Returns:
          Logits, float32 [B].
        """
        reader, pairs = self.model.question, pairs if self.segments else dataclasses.replace(pairs, second=None)
        variables = {"params": self.model.tower_params(tower, "question")}
        vectors = reader.apply(variables, pairs, dropout_keys, method=reader.base)
        keys = fold(dropout_keys, _HEAD_KEYS)
        return cast(Array, self.head.apply({"params": head}, vectors, keys))
