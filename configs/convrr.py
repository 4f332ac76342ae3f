"""Residual retrieval heads on SQuAD's paragraphs, also as `convrr:answer`; see endx_jax/recipes/convrr.py."""

from endx_jax.recipes.convrr import get_config  # noqa: F401
