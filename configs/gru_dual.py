"""Dual-GRUs of Yu et al. 2020; see endx_jax/recipes/gru_dual.py."""

from endx_jax.recipes.gru_dual import get_config  # noqa: F401
