"""MiniLM, or another model, on your own pairs with current defaults; see the recipe `pairs`."""

from endx_jax.methods.dual.recipes.pairs import get_config  # noqa: F401
