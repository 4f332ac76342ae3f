"""Readers of question-answer data in all supported formats."""

from endx_jax.data.formats.registry import read

__all__ = ["read"]
