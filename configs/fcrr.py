"""Residual retrieval heads on SQuAD's paragraphs, also as `fcrr:answer`; see the recipe `fcrr`."""

from endx_jax.methods.residual.recipes.fcrr import get_config  # noqa: F401
