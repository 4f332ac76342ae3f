"""MiniLM on ReQA SQuAD, in 25 minutes of two CPU cores; see endx_jax/recipes/minilm_squad.py."""

from endx_jax.recipes.minilm_squad import get_config  # noqa: F401
