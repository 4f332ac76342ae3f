"""MiniLM on your own pairs; see the recipe `minilm`."""

from endx_jax.methods.dual.recipes.minilm import get_config  # noqa: F401
