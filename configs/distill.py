"""MiniLM on scores of a teacher; see the recipe `distill`."""

from endx_jax.methods.dual.recipes.distill import get_config  # noqa: F401
