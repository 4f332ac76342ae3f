"""MiniLM, or another model, on several sets of pairs; see the recipe `multi`."""

from endx_jax.methods.dual.recipes.multi import get_config  # noqa: F401
