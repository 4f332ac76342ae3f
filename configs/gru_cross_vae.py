"""Cross-VAEs of Yu et al. 2020; see endx_jax/recipes/gru_cross_vae.py."""

from endx_jax.recipes.gru_cross_vae import get_config  # noqa: F401
