"""MiniLM on your own pairs; see endx_jax/recipes/minilm.py."""

from endx_jax.recipes.minilm import get_config  # noqa: F401
