"""Residual retrieval heads on SQuAD's paragraphs, also as `convrr:answer`; see the recipe `convrr`."""

from endx_jax.methods.residual.recipes.convrr import get_config  # noqa: F401
