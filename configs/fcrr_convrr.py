"""Residual retrieval heads on SQuAD's paragraphs, also as `fcrr_convrr:answer`; see the recipe `fcrr_convrr`."""

from endx_jax.methods.residual.recipes.fcrr_convrr import get_config  # noqa: F401
