"""MiniLM on ReQA SQuAD, in 25 minutes of two CPU cores; see the recipe `minilm_squad`."""

from endx_jax.methods.dual.recipes.minilm_squad import get_config  # noqa: F401
