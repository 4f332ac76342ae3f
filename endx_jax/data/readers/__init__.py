"""Readers of question-answer data in any known format."""

from endx_jax.data.readers.formats import read

__all__ = ["read"]
