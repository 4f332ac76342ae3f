"""Objective of late interaction: the losses of the dual encoder, with MaxSim of the texts' tokens as scores."""

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp

from endx_jax.losses.maxsim import CPU_PRODUCTS, PRODUCTS, listed_maxsim, tile_of
from endx_jax.methods.dual import DualObjective, DualSettings
from endx_jax.methods.dual.settings import SOFTMAX
from endx_jax.methods.objective import Embeddings, LossAndMetrics
from endx_jax.models.sharding_hints import platform
from endx_jax.models.token_embeddings import TOKENS
from endx_jax.settings import key, require

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class LateSettings(DualSettings):
    """`config.objective` of the method `late`: the settings of `dual`, without prefixes and the sigmoid loss."""

    name: str = key("late", "Name of the method.")
    temperature: float = key(1.0, "Divisor of MaxSim, a sum over a question's tokens (PyLate: 1).", above=0)
    loss_tile: int = key(
        -1,
        "Rows and columns of the largest score tiles, all of whose products of tokens are in memory; -1: automatic.",
        least=1,
        changes_results=False,
    )

    def __post_init__(self):
        super().__post_init__()
        require(not self.matryoshka_dims, "objective.name=late trains no prefixes: set objective.matryoshka_dims=()")
        require(self.contrastive.loss == SOFTMAX, "objective.name=late needs objective.contrastive.loss=softmax")

    def check_model(self, model: Any) -> None:
        """Raises EndxError unless the towers embed each token."""
        require(
            model.pooling == TOKENS,
            f"objective.name={self.name} trains an embedding for each token: set model.pooling to {TOKENS}",
        )

    def score_arrays(self, hard_negatives: int) -> int:
        """Returns a number so large that the loss is streamed on any number of devices."""
        del hard_negatives
        return 1 << 32


@dataclasses.dataclass(frozen=True)
class LateObjective(DualObjective):
    """Objective of a dual encoder with embeddings of tokens."""

    settings: LateSettings

    def tile(self, embeddings: Embeddings) -> int:
        """Returns the side of a tile of scores, whose products of tokens are in memory."""
        lengths = [texts.mask.shape[-1] for texts in cast(Any, vars(embeddings).values()) if texts is not None]
        products = CPU_PRODUCTS if platform(self.execution.mesh) == "cpu" else PRODUCTS
        return min(self.execution.loss_tile or 1 << 32, tile_of(lengths[0], max(lengths), products))

    def _distillation(self, temperature: Array, embeddings: Embeddings, teacher: Array, axis_name) -> LossAndMetrics:
        question, answer, hard = (cast(Any, side) for side in vars(embeddings).values())
        groups = (jax.tree.map(lambda x: x[:, None], answer), hard)
        scores = jnp.concatenate([listed_maxsim(question, texts) for texts in groups], axis=1)
        return self._of_scores(scores, temperature, teacher, axis_name)
