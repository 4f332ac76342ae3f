"""Readers of question-answer data in all supported formats."""

from endx_jax.data.readers.formats import read

__all__ = ["read"]
