"""Data: what is read, how it is split, and how it becomes batches."""

from endx_jax.data.readers import read
from endx_jax.data.records import RetrievalSet

__all__ = ["RetrievalSet", "read"]
