"""MiniLM taught by a cross-encoder on ReQA SQuAD; see the recipe `endx_minilm_squad`."""

from endx_jax.methods.endx.recipes.endx_minilm_squad import get_config  # noqa: F401
