"""Residual retrieval heads on SQuAD's paragraphs, also as `fcrr:answer`; see endx_jax/recipes/fcrr.py."""

from endx_jax.recipes.fcrr import get_config  # noqa: F401
