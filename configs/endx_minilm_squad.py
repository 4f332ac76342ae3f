"""MiniLM taught by a cross-encoder on ReQA SQuAD; see endx_jax/recipes/endx_minilm_squad.py."""

from endx_jax.recipes.endx_minilm_squad import get_config  # noqa: F401
