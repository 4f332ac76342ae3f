"""MiniLM on docstrings, in a few minutes of two CPU cores; see endx_jax/recipes/quickstart.py."""

from endx_jax.recipes.quickstart import get_config  # noqa: F401
