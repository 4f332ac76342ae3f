"""MiniLM as a pair classifier on ReQA SQuAD; see endx_jax/recipes/minilm_pairs.py."""

from endx_jax.recipes.minilm_pairs import get_config  # noqa: F401
