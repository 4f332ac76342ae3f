"""Distillation of embeddings: towers learn a teacher's embeddings of the same texts (LEAF; jina-embeddings-v5)."""

from endx_jax.methods.dual import embed_by_guide
from endx_jax.methods.embedding_distillation.batches import TaughtStream
from endx_jax.methods.embedding_distillation.objective import (
    EmbeddingDistillationObjective,
    EmbeddingDistillationSettings,
)
from endx_jax.methods.method import Method

METHOD = Method(
    "embedding_distillation",
    EmbeddingDistillationSettings,
    EmbeddingDistillationObjective,
    stream=TaughtStream,
    annotate=embed_by_guide,
    shares_space=True,
)

__all__ = ["METHOD", "EmbeddingDistillationObjective", "EmbeddingDistillationSettings"]
