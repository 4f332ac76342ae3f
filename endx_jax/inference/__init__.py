"""Inference: `endx_jax.load` and the model that it returns."""

from endx_jax.inference.embedding_model import EmbeddingModel, EncodeOptions, ModelSource
from endx_jax.inference.loading import load

__all__ = ["EmbeddingModel", "EncodeOptions", "ModelSource", "load"]
