"""Distillation of embeddings: towers learn a teacher's embeddings of the same texts (LEAF; jina-embeddings-v5)."""

import functools
from typing import Any

from endx_jax.data.batches.token_tables import Pairs
from endx_jax.methods.dual import ContrastiveCollator, embed_by_guide
from endx_jax.methods.embedding_distillation.objective import (
    EmbeddingDistillationObjective,
    EmbeddingDistillationSettings,
)
from endx_jax.methods.method import Method
from endx_jax.settings import require


def taught_collator(pairs: Pairs, settings: Any, hard_negatives: int) -> ContrastiveCollator:
    """Returns the collator of batches with the teacher's embeddings of their texts, as the `guide`: `Method.collator`.

    Raises:
      EndxError: hard negatives are requested.
    """
    del settings
    require(
        not hard_negatives,
        "objective.name=embedding_distillation compares no texts with each other: set data.hard_negatives to 0",
    )
    return ContrastiveCollator(pairs)


METHOD = Method(
    "embedding_distillation",
    EmbeddingDistillationSettings,
    EmbeddingDistillationObjective,
    collator=taught_collator,
    annotate=functools.partial(embed_by_guide, as_teacher=True),
)

__all__ = ["METHOD", "EmbeddingDistillationObjective", "EmbeddingDistillationSettings"]
