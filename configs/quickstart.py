"""MiniLM on docstrings, in a few minutes of two CPU cores; see the recipe `quickstart`."""

from endx_jax.methods.dual.recipes.quickstart import get_config  # noqa: F401
