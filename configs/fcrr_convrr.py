"""Residual retrieval heads on SQuAD's paragraphs, also as `fcrr_convrr:answer`; see endx_jax/recipes/fcrr_convrr.py."""

from endx_jax.recipes.fcrr_convrr import get_config  # noqa: F401
